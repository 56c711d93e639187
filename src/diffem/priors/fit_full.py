r"""The full-covariance model of `fit_gaussian`: sums over observations, and the update they give.

With K = AΣAᵀ + Σ_y and g = AᵀK⁻¹(y − Aμ), the posterior of x is N(μ + Σg, Σ − ΣAᵀK⁻¹AΣ), so a round of
expectation–maximisation is

    μ ← μ + Σ ḡ,      Σ ← Σ + Σ (cov(g) − mean AᵀK⁻¹A) Σ.

Operators that measure single entries (masks) never form A: their K are blocks of Σ (`linalg/selected.py`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from ..files import memory
from ..linalg import Covariance, DenseCovariance
from ..linalg.selected import SelectedBlocks
from ..observations import Observations
from ..observations.batches import Batches
from ..observations.matrices import measurement_matrices, noise_matrices

GROWTH = 10.0  # bound on extrapolated variances, relative to the norm of the covariance before
ENOUGH_PAIRS = 30  # observations that must measure a pair of entries together, if its moments are to be used as a start


class FullModel:
    """The model for any operator, by dense matrices.

    It starts from N(0, I), because the observations are divided by their scale.
    """

    def __init__(self, batches: Batches, n: int) -> None:
        first, device = batches.first(), batches.device
        self.x_shape, self.dtype = first.x_shape, first.y.dtype
        size, m = math.prod(first.x_shape), first.y[0].numel()
        # float64 numbers held at once: A, [A, y − Aμ] and L⁻¹ of it with a copy; Σ_y, K and L
        self.bytes_each = 8 * (5 * m * size + 4 * m * m)
        self._cache: dict[int, tuple[Tensor, Tensor, Tensor]] = {}
        # the matrices of A and Σ_y are the same in every round
        self._keep = memory.may_stay(n * m * (size + m) * 8, device)
        self.mean = torch.zeros(size, dtype=torch.float64, device=device)
        self.cov = torch.eye(size, dtype=torch.float64, device=device)
        self._reset()

    def begin(self, mean: Tensor, cov: Covariance) -> None:
        """Start from N(mean, cov) instead of the default; mean: `(*event)`."""
        self.mean = mean.flatten().to(self.mean)
        size = len(self.mean)
        eye = torch.eye(size, dtype=self.mean.dtype, device=self.mean.device).reshape(size, *mean.shape)
        self.cov = cov.to(self.mean).matvec(eye).flatten(1).contiguous()
        self._reset()

    def scorer(self) -> FullModel:
        """Copy the model with new sums, for the likelihood of other observations."""
        new = copy.copy(self)
        new._cache, new._keep = {}, False
        new._reset()
        return new

    def state(self) -> dict[str, Tensor]:
        return {"mean": self.mean, "cov": self.cov}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a `state()`. It contains Σ itself, since `set_parameters` would round it by a logarithm."""
        self.mean, self.cov = state["mean"].to(self.mean), state["cov"].to(self.cov)
        self._reset()

    def _reset(self) -> None:
        self.count = 0
        self.g = torch.zeros_like(self.mean)
        self.gg = torch.zeros_like(self.cov)
        self.information = torch.zeros_like(self.cov)

    def _matrices(self, obs: Observations) -> tuple[Tensor, Tensor, Tensor]:
        """A, Σ_y and the mask of unmeasured entries."""
        if self.count in self._cache:
            return self._cache[self.count]
        matrices = (measurement_matrices(obs), *noise_matrices(obs))
        if self._keep:
            self._cache[self.count] = matrices
        return matrices

    def expect(self, obs: Observations) -> float:
        A, sigma_y, outside = self._matrices(obs)
        n, m, _ = A.shape
        K = A @ self.cov @ A.mT + sigma_y
        chol = torch.linalg.cholesky(K)
        residual = obs.y.flatten(1).double() - A @ self.mean
        residual = torch.where(outside, 0, residual)
        whitened = torch.linalg.solve_triangular(chol, torch.cat([A, residual.unsqueeze(-1)], -1), upper=False)
        B, r = whitened[..., :-1], whitened[..., -1]  # L⁻¹A, L⁻¹(y − Aμ)
        g = (B.mT @ r.unsqueeze(-1)).squeeze(-1)
        self.count += n
        self.g = self.g + g.sum(0)
        self.gg = self.gg + g.T @ g
        flat = B.reshape(n * m, -1)
        self.information = self.information + flat.T @ flat
        measured = float((~outside).sum())
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum()
        return float(-0.5 * (r.square().sum() + logdet + measured * math.log(2 * math.pi)))

    def parameters(self) -> Tensor:
        # the logarithm of Σ: any symmetric matrix is allowed, and a variance that tends to 0 keeps changing
        values, vectors = torch.linalg.eigh(self.cov)
        log = (vectors * values.clamp(min=1e-30).log()) @ vectors.T
        return torch.cat([self.mean, log.flatten()])

    def set_parameters(self, parameters: Tensor) -> None:
        size = len(self.mean)
        log = parameters[size:].reshape(size, size)
        values, vectors = torch.linalg.eigh((log + log.T) / 2)
        # an extrapolated variance that is far too large costs little likelihood
        largest = (GROWTH * self.cov.norm()).log()
        values = values.minimum(largest).clamp(-70, 70)
        self.mean, self.cov = parameters[:size], (vectors * values.exp()) @ vectors.T
        self._reset()

    def maximise(self) -> None:
        g = self.g / self.count
        spread = self.gg / self.count - g.outer(g) - self.information / self.count
        self.mean = self.mean + self.cov @ g
        cov = self.cov + self.cov @ spread @ self.cov
        self.cov = (cov + cov.T) / 2
        self._reset()

    def result(self) -> tuple[Tensor, DenseCovariance]:
        mean = self.mean.reshape(self.x_shape).to(self.dtype)
        values, vectors = torch.linalg.eigh(self.cov)
        return mean, DenseCovariance.from_eigen(values.clamp(min=0).to(mean), vectors.to(mean))


class SelectionModel(FullModel):
    """The model for operators that measure single entries.

    It starts from pairwise moments if enough pairs are measured.
    """

    def __init__(self, batches: Batches, largest: int, amplified: bool = False) -> None:
        """Prepare the model.

        Args:
            largest: Largest number of entries that an observation measures.
            amplified: Whether the noise of some values may be far above the signal.
        """
        super().__init__(batches, 0)
        size = len(self.mean)
        # memory: a block of the covariance, its inverse and their indices; y, its noise and its indices
        self.bytes_each = 8 * (8 * largest**2 + 8 * size)
        moments = _weighted_moments(batches, size) if amplified else _moments(batches, size)
        if moments is not None:
            self.mean, self.cov = moments

    def expect(self, obs: Observations) -> float:
        selected, y, variances = _selection(obs), obs.y.flatten(1).double(), _variances(obs)
        blocks = SelectedBlocks.gather(self.cov, variances, selected)
        inverse, logdet = blocks.inverse()
        residual = blocks.take(y - self.mean)
        solved = blocks.solve(residual, inverse)
        g = blocks.spread(solved, len(self.mean))
        self.count += len(obs)
        self.g = self.g + g.sum(0)
        self.gg = self.gg + g.T @ g
        blocks.add_to(self.information, inverse)
        fit = (residual * solved).sum()
        return float(-0.5 * (fit + logdet.sum() + float(selected.sum()) * math.log(2 * math.pi)))


def _variances(obs: Observations) -> Tensor:
    """The noise variance of every entry, `(n, N)`."""
    return obs.noise.diagonal(tuple(obs.y.shape[1:])).expand(obs.y.shape).flatten(1).double()


def _moments(batches: Batches, size: int) -> tuple[Tensor, Tensor] | None:
    """Pairwise mean and covariance of the entries; None if some pair is rarely measured together.

    Pairwise moments are noisy and need not form a covariance matrix. The most negative eigenvalue shows the size of
    that noise; eigenvalues that are not clearly larger are replaced by their average.
    """
    mean, pairs, products, noise = _weighted_sums(batches, size, lambda part: _selection(part).double())
    if pairs.min() < ENOUGH_PAIRS:
        return None
    cov = products / pairs - torch.diag(noise / pairs.diagonal())
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    unclear = values < 2 * -values.min().clamp(max=0)
    smallest = 1e-3 * values.mean().clamp(min=1e-6)
    values = torch.where(unclear, values[unclear].mean() if unclear.any() else values, values).clamp(min=smallest)
    return mean, (vectors * values) @ vectors.T


def _weighted_moments(batches: Batches, size: int) -> tuple[Tensor, Tensor]:
    """Pairwise mean and covariance of the entries, if the noise of some values may be far above the signal.

    A value with noise variance n of an entry with variance v gets the weight w = v/(v + n). The variances v come from a
    first pass, with v = 1. A covariance with less total weight than `ENOUGH_PAIRS` observations is shrunk towards 0
    accordingly.
    """
    variance = torch.ones(size, dtype=torch.float64, device=batches.device)
    for last in (False, True):
        weight = partial(_signal_share, variance)
        mean, pairs, products, noise = _weighted_sums(batches, size, weight)
        diagonal = ((products.diagonal() - noise) / pairs.diagonal().clamp(min=ENOUGH_PAIRS)).clamp(min=0)
        smallest = 1e-3 * diagonal.mean().clamp(min=1e-6)
        if not last:
            variance = diagonal.clamp(min=smallest)
    cov = products / (pairs + ENOUGH_PAIRS)
    cov.diagonal().copy_(diagonal)
    values, vectors = torch.linalg.eigh((cov + cov.T) / 2)
    return mean, (vectors * values.clamp(min=smallest)) @ vectors.T


def _signal_share(variance: Tensor, obs: Observations) -> Tensor:
    """v/(v + n) of the measured entries, 0 of the others, `(n, N)`."""
    return torch.where(_selection(obs), variance / (variance + _variances(obs)), 0)


def _selection(obs: Observations) -> Tensor:
    selected = obs.selection()
    assert selected is not None
    return selected


def _weighted_sums(
    batches: Batches, size: int, weight_of: Callable[[Observations], Tensor]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute sums with the weights w `(n, N)` of the entries.

    Returns:
        The mean `(N,)`, Σ wwᵀ and Σ (w ⊙ (y − mean))(w ⊙ (y − mean))ᵀ `(N, N)`, and Σ w² n `(N,)`.
    """
    count, total, noise = (torch.zeros(size, dtype=torch.float64, device=batches.device) for _ in range(3))
    pairs, products = (count.new_zeros(size, size) for _ in range(2))
    for part in batches:
        weight = weight_of(part)
        count += weight.sum(0)
        total += (weight * part.y.flatten(1).double()).sum(0)
    mean = total / count.clamp(min=1e-12)
    for part in batches:
        weight = weight_of(part)
        centred = weight * (part.y.flatten(1).double() - mean)
        pairs += weight.T @ weight
        products += centred.T @ centred
        noise += (weight.square() * _variances(part)).sum(0)
    return mean, pairs, products, noise
