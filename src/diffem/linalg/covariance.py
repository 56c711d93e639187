r"""Covariance matrices that are never formed: isotropic and diagonal. Others are in `low_rank.py` and `dense.py`.

Each acts on batches `(n, *event)` and is shared by all samples or given one per sample. All have the same methods:

- `matvec(v)`: Σv, `solve(v)`: Σ⁻¹v,
- `sqrt(z)`: Lz with LLᵀ = Σ, so that `sqrt` of white noise has covariance Σ,
- `logdet(event_shape)`: log|Σ|,
- `plus(variance)`: Σ + variance·I, the variance a scalar or one per sample (the covariance of x + σz),
- `filtered(v, variance)`: Σ(Σ + variance·I)⁻¹v, the mean of x given v = x + σz,
- `scaled(factor)`: factor²·Σ, the covariance of factor·x,
- `restrict(measured)`: the marginal covariance of the measured entries: their block of Σ, zero on the other entries,
- `conditional_mean(observed, v)`, `conditional_variances(observed, event_shape)`: moments of the other entries given
  the observed ones.
"""

from __future__ import annotations

import copy
import math
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..core.batched import BatchedValue
from ..core.errors import InputError
from ..core.shapes import per_sample
from .inner import accumulate_dtype, dot


class Covariance(BatchedValue):
    """Base of the covariances.

    Attributes:
        powers: The power of x's unit that each tensor carries: 2 for variances, 1 for factors.
        axes: The tensors and the number of axes of each per sample; None if that depends on the event.
        is_diagonal: Whether entries are independent.
    """

    powers: ClassVar[dict[str, int]]
    axes: ClassVar[dict[str, int | None]]
    is_diagonal: ClassVar[bool] = False

    @classmethod
    def check_tensors(cls, tensors: dict[str, Tensor]) -> None:
        """Raise InputError if finite tensors from an untrusted file do not form such a covariance."""
        for name in ("variance", "variances"):
            if name in tensors and not (tensors[name] > 0).all():
                raise InputError(f"cov.{name} must be positive, got {float(tensors[name].min()):.3g}")

    def matvec(self, v: Tensor) -> Tensor:
        """Σv, `(n, *event)`."""
        raise NotImplementedError

    def solve(self, v: Tensor) -> Tensor:
        """Σ⁻¹v, `(n, *event)`."""
        raise NotImplementedError

    def sqrt(self, z: Tensor) -> Tensor:
        """Lz with LLᵀ = Σ, `(n, *event)`: white noise z becomes noise of covariance Σ."""
        raise NotImplementedError

    def logdet(self, event_shape: tuple[int, ...]) -> Tensor:
        """log|Σ|, `(1 or n,)`."""
        raise NotImplementedError

    def diagonal(self, event_shape: tuple[int, ...]) -> Tensor:
        """The variances, `(1 or n, *event)`."""
        raise NotImplementedError

    def plus(self, variance: Tensor | float) -> Covariance:
        """Σ + variance·I; the variance is a scalar or `(n,)`."""
        raise NotImplementedError

    def filtered(self, v: Tensor, variance: Tensor | float) -> Tensor:
        """Σ(Σ + variance·I)⁻¹v, `(n, *event)`, to the precision of v; the variance is positive, a scalar or `(n,)`.

        The mean of x ~ N(0, Σ) given v = x + noise. Covariances that mix entries override it: (Σ + variance·I)⁻¹v is
        much larger than the result if Σ is ill-conditioned, and so are its rounding errors.
        """
        return self.matvec(self.plus(variance).solve(v))

    def scaled(self, factor: float) -> Self:
        """factor²·Σ: the covariance of samples multiplied by `factor`."""
        new = copy.copy(self)
        new._tensors = dict(self._tensors)
        for name, power in self.powers.items():
            new._tensors[name] = self._tensors[name] * factor**power
        return new

    def restrict(self, measured: Tensor) -> Covariance:
        """The covariance of the measured entries: their block of Σ, zero elsewhere."""
        raise NotImplementedError

    def conditional_mean(self, observed: Tensor, v: Tensor) -> Tensor:
        """Compute E[e | e_s = v_s] for e ~ N(0, Σ), `(n, *event)`. Valid on the entries that are not observed.

        Args:
            observed: Boolean, broadcastable to v.
            v: (n, *event). The observed values; 0 on the other entries.
        """
        return self.matvec(self.restrict(observed).solve(v))

    def conditional_variances(self, observed: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        """Compute the diagonal of V[e | e_s], `(1 or n, *event)`. Valid on the entries that are not observed."""
        return self.diagonal(event_shape)  # the entries are independent

    def eigenvalue_floor(self) -> Tensor:
        """A positive lower bound on the eigenvalues of Σ, `(1 or n,)`; 1 for a restriction that leaves no entry."""
        raise NotImplementedError

    def bind(self, event_ndim: int) -> Covariance:
        """Decide which tensors are per sample, given the number of axes of a sample."""
        return self

    def mahalanobis(self, v: Tensor) -> Tensor:
        """vᵢᵀΣ⁻¹vᵢ per sample, `(n,)`."""
        return dot(v, self.solve(v))

    def log_prob(self, v: Tensor) -> Tensor:
        """log N(vᵢ | 0, Σ) per sample, `(n,)`; on a restricted covariance, the density of the measured entries."""
        event_shape = tuple(v.shape[1:])
        count = (self.diagonal(event_shape) > 0).expand(v.shape).flatten(1).sum(1, dtype=accumulate_dtype(v.device))
        return -0.5 * (self.mahalanobis(v) + self.logdet(event_shape) + count * math.log(2 * math.pi))


def check_positive(name: str, values: Tensor) -> Tensor:
    if not isinstance(values, Tensor) or not values.is_floating_point():
        raise InputError(f"{name} must be a floating-point tensor or a number, got {values!r}")
    good = torch.isfinite(values) & (values > 0)
    if not good.all():
        raise InputError(f"{name} must be positive and finite, got {values[~good].reshape(-1)[:4].tolist()}")
    return values


class Isotropic(Covariance):
    """variance · I; variance: `()` or `(n,)`."""

    powers: ClassVar[dict[str, int]] = {"variance": 2}
    axes: ClassVar[dict[str, int | None]] = {"variance": 0}
    is_diagonal: ClassVar[bool] = True

    def __init__(self, variance: Tensor | float) -> None:
        super().__init__()
        if not isinstance(variance, Tensor):
            variance = torch.tensor(float(variance), dtype=torch.float64)
        self._store("variance", check_positive("variance", variance), 0)

    def _scale(self, v: Tensor) -> Tensor:
        return self._read("variance").to(v.dtype).reshape(-1, *(1,) * (v.ndim - 1))

    def matvec(self, v: Tensor) -> Tensor:
        return self._scale(v) * v

    def solve(self, v: Tensor) -> Tensor:
        return v / self._scale(v)

    def sqrt(self, z: Tensor) -> Tensor:
        return self._scale(z).sqrt() * z

    def logdet(self, event_shape: tuple[int, ...]) -> Tensor:
        return math.prod(event_shape) * log_positive(self._read("variance"))

    def diagonal(self, event_shape: tuple[int, ...]) -> Tensor:
        variance = self._read("variance")
        return variance.reshape(-1, *(1,) * len(event_shape)).expand(-1, *event_shape)

    def plus(self, variance: Tensor | float) -> Isotropic:
        return Isotropic._raw(variance=(self._tensors["variance"] + variance, 0))

    def restrict(self, measured: Tensor) -> Diagonal:
        variance = self._read("variance")
        scale = variance.reshape(-1, *(1,) * (measured.ndim - 1))
        return Diagonal._raw(variances=(measured * scale, measured.ndim - 1))

    def eigenvalue_floor(self) -> Tensor:
        return self._read("variance")


class Diagonal(Covariance):
    """Independent entries; variances: `(*event)` or `(n, *event)`."""

    powers: ClassVar[dict[str, int]] = {"variances": 2}
    axes: ClassVar[dict[str, int | None]] = {"variances": None}
    is_diagonal: ClassVar[bool] = True

    def __init__(self, variances: Tensor) -> None:
        super().__init__()
        self._store("variances", check_positive("variances", variances), None)

    def bind(self, event_ndim: int) -> Diagonal:
        return self._bind(variances=event_ndim)

    def _variances(self, v: Tensor) -> Tensor:
        return self._read("variances", v.ndim - 1).to(v.dtype)

    def matvec(self, v: Tensor) -> Tensor:
        return self._variances(v) * v

    def solve(self, v: Tensor) -> Tensor:
        return v * reciprocal(self._variances(v))

    def sqrt(self, z: Tensor) -> Tensor:
        return self._variances(z).sqrt() * z

    def logdet(self, event_shape: tuple[int, ...]) -> Tensor:
        return log_positive(self.diagonal(event_shape)).flatten(1).sum(1)

    def diagonal(self, event_shape: tuple[int, ...]) -> Tensor:
        return self._read("variances", len(event_shape)).expand(-1, *event_shape)

    def plus(self, variance: Tensor | float) -> Diagonal:
        variances, ndim = with_variance(self, variance)
        return Diagonal._raw(variances=(variances, ndim))

    def restrict(self, measured: Tensor) -> Diagonal:
        ndim = measured.ndim - 1
        return Diagonal._raw(variances=(measured * self._read("variances", ndim), ndim))

    def eigenvalue_floor(self) -> Tensor:
        return smallest_variance(self)


def reciprocal(d: Tensor) -> Tensor:
    """1/d, and 0 where a restriction put 0: those entries are outside the system."""
    return torch.where(d > 0, 1 / d, 0)


def log_positive(d: Tensor) -> Tensor:
    return torch.where(d > 0, d.to(accumulate_dtype(d.device)).log(), 0)


def smallest_variance(cov: Covariance) -> Tensor:
    """The smallest entry of the diagonal that a restriction left, `(1 or n,)`."""
    variances = cov._read("variances").flatten(1)
    smallest = torch.where(variances > 0, variances, torch.inf).amin(-1)
    return torch.where(smallest.isinf(), 1, smallest)


def with_variance(cov: Covariance, variance: Tensor | float) -> tuple[Tensor, int | None]:
    """The diagonal of `cov` plus a scalar or one variance per sample, and how many axes a sample of it has."""
    variances, ndim = cov._tensors["variances"], cov._shared_ndim["variances"]
    if not isinstance(variance, Tensor) or variance.ndim == 0:
        return variances + variance, ndim
    if ndim is None:
        raise InputError("bind(event_ndim) this covariance before adding one variance per sample")
    variances = cov._read("variances")
    return variances + per_sample(variance, variances), ndim
