r"""The exact posterior of a Gaussian prior: draws by Matheron's rule, and the exact denoiser E[x | x_t, y].

Given x_t, x is N(x̂, V) with V = σ²Σ(Σ + σ²I)⁻¹, so y moves the mean to

    E[x | x_t, y] = x̂ + V Aᵀ (Σ_y + A V Aᵀ)⁻¹ (y − A x̂),

which conjugate gradients solve to machine precision. Draws need no x_t: see `GaussianPrior.draw_posterior`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.shapes import per_sample
from ..observations import Observations
from ..priors.base import Prior
from ..priors.gaussian import ITERATIONS as EXACT_ITERATIONS
from ..priors.gaussian import GaussianPrior
from ..samplers import Sampler
from .base import LinearisedDenoiser, Posterior
from .evaluation import Evaluation, Statistics
from .explicit import ITERATIONS
from .heuristic import SigmaX


@dataclass
class GaussianDenoiser(SigmaX):
    """The exact E[x | x_t, y]: `sigma_x` with the covariance of the prior, whose Jacobian is Σ(Σ + σ²I)⁻¹."""

    method: ClassVar[str] = "exact"
    advice: ClassVar[str] = "use method='mmps' with solver='direct', which gives the same posterior"

    iterations: int = EXACT_ITERATIONS  # systems with unequal noise need hundreds

    @property
    def likelihood_iterations(self) -> int:
        return ITERATIONS

    def correction(self, prior: LinearisedDenoiser, pullback: Tensor, sigma: Tensor) -> Tensor:
        cov, variance = self.prior.covariance(), per_sample(sigma, pullback) ** 2
        assert cov is not None
        return cov.filtered(variance * pullback, sigma**2)


@dataclass
class GaussianPosterior(Posterior):
    """The posterior of a `GaussianPrior`. Draws are exact, unless a sampler is named."""

    method: ClassVar[str] = "exact"
    is_exact: ClassVar[bool] = True

    _denoiser: GaussianDenoiser | None = field(init=False, repr=False, default=None)  # made at the first evaluation

    @classmethod
    def applies(cls, prior: Prior, obs: Observations) -> bool:
        return isinstance(prior, GaussianPrior)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.prior, GaussianPrior):
            raise InputError(f"GaussianPosterior needs a GaussianPrior, got {type(self.prior).__name__}")

    def observe(self, obs: Observations) -> None:
        super().observe(obs)
        self._denoiser = None

    def denoiser(self) -> GaussianDenoiser:
        """The denoiser of these observations."""
        if self._denoiser is None:
            self._denoiser = GaussianDenoiser(self.prior, self.obs)
        return self._denoiser

    def target(self, *args: Any, **options: Any) -> Any:
        return self.denoiser().target(*args, **options)

    def capturable(self, sampler: Sampler) -> bool:
        return self.denoiser().capturable(sampler)

    def warn_of(self, statistics: Statistics, result: str = "draw") -> None:
        self.denoiser().warn_of(statistics, result)

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        return self.denoiser().evaluate(x_t, sigma)

    @in_default_modes
    def mean(self) -> Tensor:
        """Compute E[x | y], `(n, *event)`."""
        assert isinstance(self.prior, GaussianPrior)
        return self.prior.posterior_mean(self.obs)

    def exact_draw(self, draw: int, seed: int, lap: int, index: Tensor, batch_size: int | None) -> Tensor:
        prior, n = self.prior, len(self.obs)
        assert isinstance(prior, GaussianPrior)
        rows = torch.arange(n).split(batch_size or prior.batch_for(n))
        parts = ((self.obs if len(row) == n else self.obs[row], index[row]) for row in rows)
        return torch.cat([prior.draw_posterior(obs, seed=seed, lap=lap, index=at, draw=draw) for obs, at in parts])
