r"""The paper's heuristics for V[x | x_t], all of the form σ²C(C + σ²I)⁻¹, which is V[x | x_t] for x ~ N(·, C).

C → ∞ gives Σ_t (`sigma_t`), C = s²I gives (I/s² + Σ_t⁻¹)⁻¹ (`identity`), C = Σ_x gives (Σ_x⁻¹ + Σ_t⁻¹)⁻¹ (`sigma_x`).
s is the scale of the prior, 1 in the paper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import per_sample
from ..linalg import Covariance, as_covariance
from .base import LinearisedDenoiser
from .explicit import ExplicitCovariance


def unit_prior_variance(sigma: Tensor, scale: float) -> Tensor:
    """The variance of x given x_t if x were N(·, s²I): σ²/(1 + σ²/s²)."""
    return sigma**2 / (1 + (sigma / scale) ** 2)


@dataclass
class SigmaT(ExplicitCovariance):
    """The heuristic V = Σ_t = σ_t² I of the paper."""

    method: ClassVar[str] = "sigma_t"

    def covariance(self, prior: LinearisedDenoiser, x_t: Tensor, sigma: Tensor) -> Callable[[Tensor], Tensor]:
        variance = per_sample(sigma, x_t) ** 2
        return lambda w: variance * w


@dataclass
class Identity(ExplicitCovariance):
    """The heuristic V = (I/s² + Σ_t⁻¹)⁻¹ of the paper, s being the scale of the prior."""

    method: ClassVar[str] = "identity"

    def covariance(self, prior: LinearisedDenoiser, x_t: Tensor, sigma: Tensor) -> Callable[[Tensor], Tensor]:
        variance = unit_prior_variance(sigma, self.prior.scale)
        return lambda w: per_sample(variance, w) * w


@dataclass
class SigmaX(ExplicitCovariance):
    """The heuristic V = (Σ_x⁻¹ + Σ_t⁻¹)⁻¹ of the paper.

    Attributes:
        cov_x: Σ_x. Default: the covariance of the prior.
    """

    method: ClassVar[str] = "sigma_x"

    cov_x: Covariance | Tensor | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        cov = self.cov_x if self.cov_x is not None else self.prior.covariance()
        if cov is None:
            raise InputError(
                f"method 'sigma_x' needs the covariance of x, which this {type(self.prior).__name__} does not have; "
                "pass cov_x=..., for example priors.fit_gaussian(obs).covariance()"
            )
        self.cov_x = as_covariance(cov, self.prior.event_shape, "sigma_x").to(self.obs.y)

    def covariance(self, prior: LinearisedDenoiser, x_t: Tensor, sigma: Tensor) -> Callable[[Tensor], Tensor]:
        cov = self.cov_x
        assert isinstance(cov, Covariance)
        variance = per_sample(sigma, x_t) ** 2
        return lambda w: cov.filtered(variance * w, sigma**2)
