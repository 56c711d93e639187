r"""The part of x that an observation determines beyond its noise: D = I − (I + s²G)⁻¹ with G = AᵀΣ_y⁻¹A.

s is the prior's scale. D has eigenvalues between 0 (nothing was measured in this direction) and 1 (the measurement is
far more precise than the prior). They are 0 or 1 for masks and k-space with little noise, and lie between for blurs and
noisy values. Identically,

    D = s² Aᵀ (Σ_y + s² AAᵀ)⁻¹ A,

which is how rᵀDr is computed, depending on the operator:

- `RowWeights`: AAᵀ and Σ_y are diagonal (masks, windows, complex k-space, block means). A weight for every value of Ar.
- `Spectral`: G is diagonal in Fourier space (circular blurs, k-space of real images). A weight for every frequency of
  r.
- `Explicit`: the matrices s (Σ_y + s²AAᵀ)^-½ A, if those of all observations fit in memory (small operators).
- `Polynomial`: all other operators (coils, resampling, user-defined functions of images). A fixed number of Chebyshev
  iterations for (Σ_y + s²AAᵀ)⁻¹, each with one product with A and one with Aᵀ, gives a polynomial of G that converges
  to D. Its coefficients are fixed, so the map is linear in r; the coefficients of conjugate gradients depend on r,
  which would make the weight depend on x. With four iterations the relative distance from D in the Frobenius norm is
  0.36 for blurs that end at the border, 0.19 for bicubic reduction by 2 and 0.27 for four coils at R = 3. That of AᵀA,
  at the cost of one iteration, is 1.07, 0.31 and 0.56.

Blurs leave some directions undetermined in nearly every observation. A network with more weight on the other directions
learns these last, and its draws vary too much along them. With D̄ the mean of D over observations and g its mean
eigenvalue, the loss therefore uses the weight

    W = S D S + T,      S² = max(D̄, g)⁻¹,      T = (I − D̄/g)₊,

where functions of D̄ apply to its eigenvalues. The mean of W over observations is I: no direction is preferred on
average, but a direction has more weight in observations that determine it. W is independent of x if D is. If A selects
entries (masks, windows, k-space), other observations measure what one leaves out, and W = D/g.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..files import memory
from ..linalg import Covariance, Isotropic
from ..linalg.inner import axpy, dot
from ..observations import Observations
from ..observations.lazy import LazyNoise, LazyOperators
from ..observations.matrices import measurement_matrices, noise_matrices
from ..operators import Operator
from ..operators.gain import mean_gain
from ..operators.spectrum import Entries, Frequencies, Spectrum, shrinkage

EXPLICIT_NUMBERS = 1 << 16  # largest number of entries of a matrix; making larger ones takes longer than it saves
ITERATIONS = 4  # Chebyshev iterations of `Polynomial`
POWER_STEPS = 12  # power iterations for the largest eigenvalue
MARGIN = 1.1  # factor by which the estimate may be too small
AVERAGED = 1024  # number of observations in the mean D̄
PART_NUMBERS = 1 << 22  # entries of the matrices that are computed at a time


class DeterminedPart(Protocol):
    """rᵀDr and rᵀWr, summed over samples."""

    @property
    def resident(self) -> bool:
        """Whether everything is in memory: a step that reads from disk cannot be captured."""
        ...

    def energy(self, r: Tensor, index: Tensor) -> Tensor:
        """Σ rᵀDr of samples r `(n, *event)` with the operators of observations index `(n,)`: `()`."""
        ...

    def weighted_energy(self, r: Tensor, index: Tensor) -> Tensor:
        """Σ rᵀWr up to a constant factor, for the same arguments."""
        ...


def determined(
    A: Operator | LazyOperators,
    noise: Covariance | LazyNoise,
    count: int,
    event_shape: tuple[int, ...],
    scale: float,
) -> DeterminedPart:
    """D of `count` observations with operators A and noise Σ_y, in the cheapest form that they allow.

    scale: s, the standard deviation that the prior gives an entry of x.
    """
    source = _Source(A, noise, event_shape, scale)
    first = source.observations(torch.arange(1))
    if first.cov.is_diagonal and first.A.gram_diagonal(first.y) is not None:
        return RowWeights(source)
    spectrum = first.information()
    if spectrum is not None and (isinstance(first.cov, Isotropic) or isinstance(spectrum.basis, Entries)):
        return Spectral.of(source, count)
    entries = first.y[0].numel() * math.prod(event_shape)
    if entries <= EXPLICIT_NUMBERS and memory.may_stay(count * entries * first.y.element_size(), first.y.device):
        return Explicit.of(source, count)
    return Polynomial(source, count)


class _Source:
    """Operators and noise of all observations, in memory or on disk."""

    def __init__(
        self, A: Operator | LazyOperators, noise: Covariance | LazyNoise, event_shape: tuple[int, ...], scale: float
    ) -> None:
        self.A, self.noise, self.event_shape, self.variance = A, noise, event_shape, scale**2

    @property
    def resident(self) -> bool:
        return isinstance(self.A, Operator) and isinstance(self.noise, Covariance)

    def observations(self, index: Tensor, like: Tensor | None = None) -> Observations:
        """Observations of 0 through the operators of `index` `(n,)`."""
        noise = self.noise[index]
        like = next(iter(noise._tensors.values())) if like is None else like
        A = self.A[index.to(like.device)]
        x = torch.zeros(len(index), *self.event_shape, dtype=like.dtype, device=like.device)
        return Observations(A(x), A, cov=noise)


class RowWeights:
    """AAᵀ and Σ_y are diagonal: rᵀDr = Σ_j s²/(σ_j² + s²‖a_j‖²) (Ar)_j² over the rows a_j of A."""

    def __init__(self, source: _Source) -> None:
        self._source, self.resident = source, source.resident

    def energy(self, r: Tensor, index: Tensor) -> Tensor:
        A, noise, variance = self._source.A[index], self._source.noise[index], self._source.variance
        seen = A(r)
        gram, noise_variances = A.gram_diagonal(seen), noise.diagonal(tuple(seen.shape[1:]))
        assert gram is not None
        return (variance / (noise_variances.to(r.dtype) + variance * gram) * seen.square()).sum()

    def weighted_energy(self, r: Tensor, index: Tensor) -> Tensor:
        return self.energy(r, index)


class Spectral:
    """G = Bᵀ diag(g) B: rᵀDr = Σ_k s²g_k/(1 + s²g_k) |Br|²_k."""

    def __init__(self, source: _Source, weights: Tensor | None, basis: Entries | Frequencies) -> None:
        """weights: The weights of all observations, `(n, ...)`. None: they are computed when they are used."""
        self._source, self._weights, self._basis, self.resident = source, weights, basis, weights is not None
        self._level: tuple[Tensor, Tensor] | None = None  # the diagonals of S² and T, (1, ...)

    @classmethod
    def of(cls, source: _Source, count: int) -> Spectral:
        new = cls._with_weights(source, count)
        one = source.observations(torch.arange(1))
        if one.A.reduced(one.y) is None:  # k-space selects
            mean = _weights(source, torch.arange(min(count, AVERAGED))).mean(0, keepdim=True)
            new._level = _balancing_weights(mean)
        return new

    @classmethod
    def _with_weights(cls, source: _Source, count: int) -> Spectral:
        first = _information(source, torch.arange(1))
        size = count * first.gains.numel() * first.gains.element_size()
        if not memory.may_stay(size, first.gains.device):
            return cls(source, None, first.basis)
        parts = torch.arange(count).split(max(1, PART_NUMBERS // math.prod(source.event_shape)))
        weights = torch.cat([_weights(source, part) for part in parts])
        return cls(source, weights, first.basis)

    def energy(self, r: Tensor, index: Tensor) -> Tensor:
        weights = _weights(self._source, index) if self._weights is None else self._weights[index]
        return (weights * self._square(r)).sum()

    def weighted_energy(self, r: Tensor, index: Tensor) -> Tensor:
        if self._level is None:
            return self.energy(r, index)
        weights = _weights(self._source, index) if self._weights is None else self._weights[index]
        return ((weights * self._level[0] + self._level[1]) * self._square(r)).sum()

    def _square(self, r: Tensor) -> Tensor:
        """|Br|², `(n, ...)`."""
        coordinates = self._basis.coordinates(r)
        return torch.view_as_real(coordinates).square().sum(-1) if coordinates.is_complex() else coordinates.square()


def _balancing_weights(mean: Tensor) -> tuple[Tensor, Tensor]:
    """S² and T for eigenvalues of D̄."""
    level = mean.mean().clamp(min=1e-12)
    return 1 / mean.clamp(min=level), (1 - mean / level).clamp(min=0)


def _information(source: _Source, index: Tensor) -> Spectrum:
    spectrum = source.observations(index).information()
    assert spectrum is not None
    return spectrum


def _weights(source: _Source, index: Tensor) -> Tensor:
    """s²g/(1 + s²g), `(n, ...)`."""
    share = shrinkage(source.variance * _information(source, index).gains)
    return share.expand(len(index), *share.shape[1:])


class Explicit:
    """D = BᵀB with B = s L⁻¹A and LLᵀ = Σ_y + s²AAᵀ, as matrices `(n, m, N)`."""

    resident = True

    def __init__(self, matrices: Tensor) -> None:
        self._matrices = matrices
        some = matrices[:AVERAGED].double().flatten(0, 1)
        values, vectors = torch.linalg.eigh(some.T @ some / min(len(matrices), AVERAGED))  # eigenvalues of D̄
        scale, rest = _balancing_weights(values)
        self._root = ((vectors * scale.sqrt()) @ vectors.T).to(matrices)  # S
        self._rest = ((vectors * rest) @ vectors.T).to(matrices)  # T

    @classmethod
    def of(cls, source: _Source, count: int) -> Explicit:
        first = source.observations(torch.arange(1))
        dtype, rows = first.y.dtype, first.y[0].numel()
        together = max(1, PART_NUMBERS // (rows * (rows + math.prod(source.event_shape))))
        parts = [cls._matrices_of(source, part).to(dtype) for part in torch.arange(count).split(together)]
        return cls(torch.cat(parts))

    @staticmethod
    def _matrices_of(source: _Source, index: Tensor) -> Tensor:
        obs = source.observations(index)
        A, (sigma_y, _) = measurement_matrices(obs), noise_matrices(obs)
        chol = torch.linalg.cholesky(sigma_y + source.variance * (A @ A.mT))
        return math.sqrt(source.variance) * torch.linalg.solve_triangular(chol, A, upper=False)

    def energy(self, r: Tensor, index: Tensor) -> Tensor:
        matrices = self._matrices[index]
        return (matrices @ r.flatten(1).unsqueeze(-1)).square().sum()

    def weighted_energy(self, r: Tensor, index: Tensor) -> Tensor:
        flat = r.flatten(1)
        return self.energy(flat @ self._root, index) + (flat * (flat @ self._rest)).sum()


class Polynomial:
    """D by a fixed polynomial of M = S(Σ_y + s²AAᵀ)S, where the diagonal matrix S gives M a diagonal of about 1.

    k Chebyshev iterations cover the eigenvalues from λ/k², or from the smallest that the noise allows, to the largest
    one, λ. In this range the relative error of the weight is at most 1/T_k((k² + 1)/(k² − 1)) < 0.27. Weaker directions
    get a weight between 0 and that of D.
    """

    def __init__(self, source: _Source, count: int, iterations: int = ITERATIONS) -> None:
        self._source, self._iterations, self.resident = source, iterations, source.resident
        parts = torch.arange(count).split(max(1, PART_NUMBERS // math.prod(source.event_shape)))
        self._gains = torch.cat([self._mean_gains(part) for part in parts])  # (count,), approximate means of diag(AAᵀ)
        self._largest = torch.cat([self._power(part) for part in parts])

    def _mean_gains(self, index: Tensor) -> Tensor:
        obs = self._source.observations(index)
        return mean_gain(obs.A, obs.y).flatten(1).mean(1).expand(len(index))

    def _power(self, index: Tensor) -> Tensor:
        """The largest eigenvalue of M, `(n,)`, by power iterations."""
        obs = self._source.observations(index)
        A, noise, root = self._system(obs.A, obs.cov, obs.y, index)
        start = Stream(0, "largest eigenvalue").normal(
            index.to(obs.y.device), tuple(obs.y.shape[1:]), dtype=obs.y.dtype
        )
        v = A(A.adjoint(start))
        value = torch.ones(len(index), dtype=torch.float64, device=v.device)
        for _ in range(POWER_STEPS):
            v = v / dot(v, v).sqrt().clamp(min=1e-30).to(v.dtype).reshape(-1, *(1,) * (v.ndim - 1))
            product = self._product(A, noise, root, v)
            value = dot(v, product)
            v = product
        return MARGIN * value.clamp(min=1e-30)

    def _system(self, A: Operator, cov: Covariance, y: Tensor, index: Tensor) -> tuple[Operator, Covariance, Tensor]:
        measured = A.measured(y)
        noise = cov if measured is None else cov.restrict(measured)
        gains = self._gains[index.to(y.device)].reshape(-1, *(1,) * (y.ndim - 1))
        variances = self._source.variance * gains + cov.diagonal(tuple(y.shape[1:]))
        return A, noise, variances.rsqrt()

    def _product(self, A: Operator, noise: Covariance, root: Tensor, v: Tensor) -> Tensor:
        scaled = root * v
        return root * (self._source.variance * A(A.adjoint(scaled)) + noise.matvec(scaled))

    @torch.no_grad()
    def _apply(self, r: Tensor, index: Tensor) -> Tensor:
        """Approximately D r, `(n, *event)`."""
        A, cov = self._source.A[index], self._source.noise[index]
        seen = A(r)
        A, noise, root = self._system(A, cov, seen, index)
        high = self._largest[index]
        measured = A.measured(seen)
        roots = root if measured is None else torch.where(measured, root, torch.inf)
        floor = cov.eigenvalue_floor() * roots.flatten(1).amin(1).square()  # below all eigenvalues of M
        low = torch.maximum(high / self._iterations**2, floor.to(high)).minimum(0.5 * high)
        centre, half = (high + low) / 2, (high - low) / 2
        # Chebyshev's semi-iterative method (Golub & Varga 1961) for M u = b from u = 0
        residual = root * seen
        u, direction = torch.zeros_like(residual), residual
        alpha, beta = 1 / centre, torch.zeros_like(centre)
        for k in range(self._iterations):
            if k:
                beta = (half * alpha).square() / (2 if k == 1 else 4)
                alpha = 1 / (centre - beta / alpha)
                direction = axpy(beta, direction, residual)
            u = axpy(alpha, direction, u)
            residual = axpy(-alpha, self._product(A, noise, root, direction), residual)
        return self._source.variance * A.adjoint(root * u)

    def energy(self, r: Tensor, index: Tensor) -> Tensor:
        product = (r * self._apply(r.detach(), index)).sum()
        return 2 * product - product.detach()  # the value rᵀDr with the gradient 2Dr: D is symmetric

    def weighted_energy(self, r: Tensor, index: Tensor) -> Tensor:
        return self.energy(r, index)
