r"""Autoguidance (Karras et al. 2024): samples guided away from the errors of a weaker denoiser.

    D(x_t, σ) = D₁(x_t, σ) + (w − 1) (D₁(x_t, σ) − D₀(x_t, σ))

D₀ is a worse denoiser of the same data: its network is smaller or was trained for less time. The errors of both have
similar directions, so the step from D₀ to D₁, taken further, removes a part of the errors of D₁. For Gaussians it
extrapolates log s: with denoisers of N(0, s₀² I) and N(0, s₁² I), deterministic samplers end at the standard deviation
s₁ʷ s₀¹⁻ʷ.
"""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..core.errors import InputError
from ..observations import Observations
from .base import Prior
from .methods import ConditionedPrior


class GuidedPrior(Prior):
    """A prior for samples only: the denoiser of `prior`, extrapolated away from that of `weaker`.

    Its samples are usually closer to the data than those of an undertrained `prior`, at twice the cost. They are less
    varied if the weight is too large. Its denoiser is E[x | x_t] of no distribution, so it has no posterior.

    Args:
        prior: D₁. Its mean and noise levels are used.
        weaker: D₀, a worse prior of the same data, for example an earlier checkpoint or a smaller network.
        weight: w, at least 1. With 1 the samples are those of `prior`.
    """

    def __init__(self, prior: Prior, weaker: Prior, weight: float = 1.5) -> None:
        for given, name in ((prior, "prior"), (weaker, "weaker")):
            if not isinstance(given, Prior):
                raise InputError(f"GuidedPrior: {name} must be a prior, got {type(given).__name__}")
        if weaker.event_shape != prior.event_shape or weaker.mean.dtype != prior.mean.dtype:
            raise InputError(
                f"GuidedPrior: both priors must have samples of one shape and dtype, got {prior.event_shape} "
                f"({prior.mean.dtype}) and {weaker.event_shape} ({weaker.mean.dtype})"
            )
        if not isinstance(weight, int | float) or isinstance(weight, bool) or not 1 <= weight < math.inf:
            raise InputError(f"GuidedPrior: weight must be a finite number of at least 1, got {weight!r}")
        super().__init__(prior.mean, prior.sigma_min, prior.sigma_max, scale=prior.scale)
        self.prior, self.weaker, self.weight = prior, weaker, float(weight)

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        x_hat = self.prior.denoise(x_t, sigma)
        if self.weight == 1:
            return x_hat
        return x_hat + (self.weight - 1) * (x_hat - self.weaker.denoise(x_t, sigma))

    def batch_for(self, most: int) -> int:
        return min(self.prior.batch_for(most), self.weaker.batch_for(most))

    def posterior(self, obs: Observations, method: str | None = None, **options: Any) -> ConditionedPrior:
        """Guided priors have no posterior. Raises InputError."""
        raise InputError(
            "a GuidedPrior is for samples only: its denoiser is not E[x | x_t] of any distribution. Condition the "
            "prior that it guides instead"
        )

    def extra_repr(self) -> str:
        return f"weight={self.weight:g}"
