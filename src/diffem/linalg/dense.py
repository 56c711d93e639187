r"""Full covariance matrices, and their blocks on the measured entries.

With M the projection onto the measured entries, their marginal covariance is MΣM. Its products MΣ(Mv) and its square
root MΣ^½ need only the eigenvectors of Σ, which observations may share; solving and log|MΣM| need the Cholesky factor
of a different block for every mask.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.shapes import per_sample
from .covariance import Covariance
from .inner import accumulate_dtype

BLOCK_NUMBERS = 1 << 24  # numbers in the blocks that are factored at a time


class DenseCovariance(Covariance):
    """A full matrix over the flattened sample; matrix: `(N, N)` or `(n, N, N)`, symmetric positive definite.

    Kept as its eigendecomposition, so that adding σ²I per sample and solving again cost one product each.
    """

    powers: ClassVar[dict[str, int]] = {"values": 2}
    axes: ClassVar[dict[str, int | None]] = {"vectors": 2, "values": 1}

    @classmethod
    def check_tensors(cls, tensors: dict[str, Tensor]) -> None:
        vectors, values = tensors["vectors"], tensors["values"]
        size = values.shape[-1:]
        if not (values >= 0).all() or vectors.shape[-1:] != size or vectors.shape[-2:-1] != size:
            raise InputError(
                f"eigenvalues {tuple(values.shape)} must be non-negative and fit vectors {tuple(vectors.shape)}"
            )
        # Q with QQᵀv ≠ v is not orthonormal, and Q diag(1/λ) Qᵀ would not be the inverse of Q diag(λ) Qᵀ
        v = torch.cos(torch.arange(vectors.shape[-1], dtype=torch.float64)).unsqueeze(-1)
        error = (vectors.double() @ (vectors.double().mT @ v) - v).norm(dim=-2).max() / v.norm()
        if not error < 1e-2:  # far above rounding in half precision, far below what arbitrary vectors have
            raise InputError("cov.vectors must be orthonormal: they are not the eigenvectors of a covariance")

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        is_square = isinstance(matrix, Tensor) and matrix.ndim in (2, 3) and matrix.shape[-1] == matrix.shape[-2]
        if not is_square or not matrix.is_floating_point() or matrix.numel() == 0:
            given = (
                f"{matrix.dtype} of shape {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else f"{matrix!r:.80}"
            )
            raise InputError(
                f"a dense covariance must be a floating-point tensor of shape (N, N) or (n, N, N), got {given}"
            )
        # every matrix of a batch on its own scale
        scale = matrix.abs().amax((-2, -1))
        asymmetry = ((matrix - matrix.mT).abs().amax((-2, -1)) / torch.where(scale == 0, 1, scale)).max()
        if not asymmetry <= 1e-4:
            raise InputError(
                f"a covariance must be symmetric; this one differs from its transpose by {asymmetry:.1e} times its "
                "largest entry"
            )
        values, vectors = torch.linalg.eigh((matrix + matrix.mT) / 2)
        floor = -1e-4 if matrix.dtype == torch.float32 else -1e-8
        if not (values.amin(-1) >= floor * scale).all():
            raise InputError(f"a covariance must be positive; its smallest eigenvalue is {values.min():.2e}")
        # contiguous, as in a file: products round differently for another memory layout
        self._store("vectors", vectors.contiguous(), 2)
        self._store("values", values.clamp(min=0), 1)

    @classmethod
    def from_eigen(cls, values: Tensor, vectors: Tensor) -> DenseCovariance:
        """Σ = Q diag(values) Qᵀ; values: `(N,)` or `(n, N)`, vectors Q: `(N, N)` or `(n, N, N)`."""
        return cls._raw(vectors=(vectors.contiguous(), 2), values=(values, 1))

    @in_default_modes
    def matrix(self) -> Tensor:
        """`(1 or n, N, N)`."""
        vectors = self._read("vectors")
        return (vectors * self._read("values").unsqueeze(1)) @ vectors.mT

    @in_default_modes
    def _apply(self, v: Tensor, scale: Tensor) -> Tensor:
        vectors = self._read("vectors")
        w = v.flatten(1)
        if len(vectors) == 1:
            return (((w @ vectors[0]) * scale) @ vectors[0].T).reshape(v.shape)
        return (vectors @ (scale.unsqueeze(-1) * (vectors.mT @ w.unsqueeze(-1)))).reshape(v.shape)

    def matvec(self, v: Tensor) -> Tensor:
        return self._apply(v, self._read("values"))

    def solve(self, v: Tensor) -> Tensor:
        return self._apply(v, 1 / self._read("values"))

    def sqrt(self, z: Tensor) -> Tensor:
        return self._apply(z, self._read("values").sqrt())

    def filtered(self, v: Tensor, variance: Tensor | float) -> Tensor:
        values = self._read("values")
        return self._apply(v, values / (values + per_sample(variance, values)))

    def logdet(self, event_shape: tuple[int, ...]) -> Tensor:
        values = self._read("values")
        return values.to(accumulate_dtype(values.device)).log().sum(-1)

    @in_default_modes
    def diagonal(self, event_shape: tuple[int, ...]) -> Tensor:
        vectors = self._read("vectors")
        return (vectors.square() @ self._read("values").unsqueeze(-1)).reshape(-1, *event_shape)

    def plus(self, variance: Tensor | float) -> DenseCovariance:
        values = self._tensors["values"]
        if isinstance(variance, Tensor) and variance.ndim == 1:
            values = self._read("values") + variance.unsqueeze(-1)
        else:
            values = values + variance
        return DenseCovariance.from_eigen(values, self._tensors["vectors"])

    def conditional_variances(self, observed: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        # diag Σ − Σ_{·s} Σ_ss⁻¹ Σ_{s·}
        matrix = self.to(accumulate_dtype(observed.device)).matrix()
        inside = observed.expand(-1, *event_shape).flatten(1)
        explained = []
        for rows, chol in self.restrict(observed)._factors(event_shape):
            part = matrix if rows is None or len(matrix) == 1 else matrix[rows]
            keep = inside if rows is None or len(inside) == 1 else inside[rows]
            cross = torch.where(keep.unsqueeze(-1), part, 0)
            explained.append(torch.linalg.solve_triangular(chol, cross, upper=False).square().sum(-2))
        diagonal = self.diagonal(event_shape)
        return diagonal - torch.cat(explained).to(diagonal.dtype).reshape(-1, *event_shape)

    def eigenvalue_floor(self) -> Tensor:
        return self._read("values").amin(-1)

    def restrict(self, measured: Tensor) -> DenseBlock:
        return DenseBlock._raw(
            vectors=(self._tensors["vectors"], 2),
            values=(self._tensors["values"], 1),
            measured=(measured[0] if len(measured) == 1 else measured, measured.ndim - 1),
        )


class DenseBlock(Covariance):
    """A dense Σ restricted to the measured entries, zero on the others. Made by `DenseCovariance.restrict`.

    measured: bool, broadcastable to the event, shared or one mask per observation.
    """

    powers: ClassVar[dict[str, int]] = {"values": 2}

    def _whole(self) -> DenseCovariance:
        return DenseCovariance.from_eigen(self._tensors["values"], self._tensors["vectors"])

    def _inside(self, event_shape: tuple[int, ...]) -> Tensor:
        """`(1 or n, *event)`, True on the measured entries."""
        return self._read("measured").expand(-1, *event_shape)

    def _keep(self, v: Tensor) -> Tensor:
        return torch.where(self._inside(tuple(v.shape[1:])), v, 0)

    def matvec(self, v: Tensor) -> Tensor:
        return self._keep(self._whole().matvec(self._keep(v)))

    def sqrt(self, z: Tensor) -> Tensor:
        return self._keep(self._whole().sqrt(z))

    def diagonal(self, event_shape: tuple[int, ...]) -> Tensor:
        return self._keep(self._whole().diagonal(event_shape))

    def solve(self, v: Tensor) -> Tensor:
        w = self._keep(v).flatten(1).to(accumulate_dtype(v.device))
        parts = []
        for rows, chol in self._factors(tuple(v.shape[1:])):
            if rows is None:
                parts.append(torch.cholesky_solve(w.T, chol[0]).T)
            else:
                parts.append(torch.cholesky_solve(w[rows].unsqueeze(-1), chol).squeeze(-1))
        return torch.cat(parts).to(v.dtype).reshape(v.shape)

    def logdet(self, event_shape: tuple[int, ...]) -> Tensor:
        diagonals = [chol.diagonal(dim1=-2, dim2=-1) for _, chol in self._factors(event_shape)]
        return 2 * torch.cat(diagonals).log().sum(-1)

    def _factors(self, event_shape: tuple[int, ...]) -> Iterator[tuple[slice | None, Tensor]]:
        """Iterate over Cholesky factors `(b, N, N)` and the observations they belong to (None: one factor for all).

        Unmeasured entries have unit rows, so they add nothing to log|Σ| and stay 0 in a solution.
        """
        inside = self._inside(event_shape).flatten(1)
        matrix = self._whole().to(accumulate_dtype(inside.device)).matrix()
        count = max(len(matrix), len(inside))
        step = max(1, BLOCK_NUMBERS // matrix[0].numel())
        for start in range(0, count, step):
            rows = slice(start, start + step)
            part = matrix if len(matrix) == 1 else matrix[rows]
            keep = inside if len(inside) == 1 else inside[rows]
            block = torch.where(keep.unsqueeze(-1) & keep.unsqueeze(-2), part, 0)
            yield None if count == 1 else rows, torch.linalg.cholesky(block + torch.diag_embed((~keep).to(block)))

    def plus(self, variance: Tensor | float) -> DenseBlock:
        return self._whole().plus(variance).restrict(self._read("measured"))

    def restrict(self, measured: Tensor) -> DenseBlock:
        return self._whole().restrict(self._read("measured") & measured)

    def eigenvalue_floor(self) -> Tensor:
        # the eigenvalues of a block lie between those of the whole (Cauchy's interlacing)
        return self._whole().eigenvalue_floor()
