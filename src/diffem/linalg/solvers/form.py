r"""M = Σ_y + A V Aᵀ as a matrix, with one product per measured value.

A product A V Aᵀp has rounding errors relative to the largest eigenvalue of A V Aᵀ, which can hide smaller eigenvalues
that exceed the noise. Along the eigenvectors they are smaller: errors are relative to the pullback of a vector, and
that of an eigenvector is as small as its eigenvalue. `Form.along` therefore measures the matrix again, along the
eigenvectors that were found first.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..inner import accumulate_dtype, choose
from ..tiny import eigh
from .system import GUARD_SLACK, System

HARMLESS = 0.1  # fraction of the noise of the solution


@dataclass(frozen=True)
class Form:
    """M in a basis W of the measured values; matrices are `(n, m, m)`.

    Attributes:
        gram: Wᵀ A V Aᵀ W; 0 for samples with non-finite products.
        noise: Wᵀ Σ_y W. Unmeasured entries, whose rows of M are 0, have a variance of the size of M instead.
        pulls: The pullbacks of the columns of W, each `(n, *event)`.
        errors: (n, m). Rounding errors of the diagonal of the gram matrix.
        least: (n, 1). The smallest variance of the noise.
        basis: W. None: the identity.
    """

    gram: Tensor
    noise: Tensor
    pulls: list[Tensor]
    errors: Tensor
    least: Tensor
    basis: Tensor | None = None

    @staticmethod
    def of(system: System, b: Tensor) -> tuple[Form, Tensor, Tensor, Tensor]:
        """M in the basis of the measured values. b: `(n, *m)`, the right-hand side.

        Returns:
            M; which entries are unmeasured `(n, m)`; the variance that they have `(n, 1)`; and which samples have
            finite products `(n,)`.
        """
        size = b[0].numel()
        gram, noise, pulls = _products(system, b, torch.eye(size, dtype=b.dtype, device=b.device).unsqueeze(0))
        outside = ((gram == 0) & (noise == 0)).all(-1)
        largest = diagonal(gram + noise).abs().amax(-1, keepdim=True)
        largest = torch.where((largest > 0) & torch.isfinite(largest), largest, 1)
        noise = noise + torch.diag_embed(outside * largest)
        finite = torch.isfinite(gram).flatten(1).all(1)
        gram = torch.where(finite.reshape(-1, 1, 1), gram, 0)
        errors = torch.finfo(b.dtype).eps * diagonal(gram).abs()
        least = diagonal(noise).amin(-1, keepdim=True)
        return Form(gram, noise, pulls, errors, least), outside, largest, finite

    def along(self, system: System, b: Tensor, directions: Directions) -> Form:
        """M in the basis of the directions for samples with hidden ones; the other samples keep their basis."""
        order = directions.magnitudes.argsort(-1)
        W = directions.vectors.gather(-1, order.unsqueeze(-2).expand_as(directions.vectors))
        W = W.to(b.dtype)  # as the products use it: its columns are not quite orthonormal, but M is exact in this basis
        signals, _, pulls = _products(system, b, W)
        W = W.to(signals)
        # a pair of directions has two products; that with the smaller eigenvalue is more precise
        gram = (W.mT @ signals).tril()
        gram = gram + gram.tril(-1).mT
        eps, sizes = torch.finfo(b.dtype).eps, diagonal(gram).abs()
        largest = sizes.amax(-1, keepdim=True)
        errors = eps * (sizes * largest).sqrt() + eps**2 * largest
        again = directions.hidden.any(-1) & torch.isfinite(gram).flatten(1).all(1)
        return Form(
            choose(again, gram, self.gram),
            choose(again, W.mT @ self.noise @ W, self.noise),
            [choose(again, *pair) for pair in zip(pulls, self.pulls, strict=True)],
            choose(again, errors, self.errors),
            self.least,
            choose(again, W, torch.eye(W.shape[-1]).to(W).expand_as(W)),
        )

    def coordinates(self, v: Tensor) -> Tensor:
        """Wᵀ v, `(n, m)`."""
        return v if self.basis is None else times(self.basis.mT, v)

    def restored(self, c: Tensor) -> Tensor:
        """W c, `(n, m)`."""
        return c if self.basis is None else times(self.basis, c)

    def directions(self) -> Directions:
        """The eigenvectors of A V Aᵀ, symmetrised, and what rounding errors leave of their eigenvalues."""
        values, vectors = eigh((self.gram + self.gram.mT) / 2)
        sizes, errors = values.abs(), values.shape[-1] * times(vectors.square().mT, self.errors)
        refused = values < -GUARD_SLACK * self.least - errors
        hidden = errors.square() > HARMLESS**2 * torch.maximum(sizes, self.least) * self.least
        return Directions(vectors, sizes, refused, sizes > errors, hidden)


@dataclass(frozen=True)
class Directions:
    """Eigenvectors of A V Aᵀ.

    Attributes:
        vectors: (n, m, m). As columns.
        magnitudes: (n, m). Absolute eigenvalues.
        refused: (n, m). The eigenvalue is negative beyond rounding.
        resolved: (n, m). The eigenvalue exceeds rounding errors; those of redundant rows of A do not.
        hidden: (n, m). Rounding errors of the eigenvalue may move the solution by more than `HARMLESS` times its noise.
    """

    vectors: Tensor
    magnitudes: Tensor
    refused: Tensor
    resolved: Tensor
    hidden: Tensor

    def weighted(self, weights: Tensor) -> Tensor:
        """Σ wᵢ vᵢvᵢᵀ for weights `(n, m)`: the projection onto the directions where they are 1 (true)."""
        return (self.vectors * weights.to(self.vectors).unsqueeze(-2)) @ self.vectors.mT


def diagonal(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1)


def times(matrix: Tensor, v: Tensor) -> Tensor:
    """Products of matrices `(n, m, m)` and vectors `(n, m)`."""
    return (matrix @ v.unsqueeze(-1)).squeeze(-1)


def _products(system: System, b: Tensor, basis: Tensor) -> tuple[Tensor, Tensor, list[Tensor]]:
    """A V AᵀW and Σ_yW, `(n, m, m)`, and the pullbacks of the columns of W `(1 or n, m, m)`."""
    signals, noises, pulls = [], [], []
    for column in basis.unbind(-1):
        signal, noise, pull = system.product(column.expand(len(b), -1).reshape(b.shape))
        signals.append(signal.flatten(1))
        noises.append(noise.flatten(1))
        pulls.append(pull)
    dtype = accumulate_dtype(b.device)
    return torch.stack(signals, -1).to(dtype), torch.stack(noises, -1).to(dtype), pulls
