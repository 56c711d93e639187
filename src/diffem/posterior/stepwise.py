r"""DPS and ΠGDM were published as corrections to x_s after a step, not to x̂.

A change c of x̂ moves x_s by κc with κ = ∂x_s/∂x̂, which for DDPM on a log-linear schedule of T steps is the constant
1 − (σ_min/σ_max)^{2/T}. To act as denoisers these methods therefore divide their correction by κ, and their strength depends on the
number of steps, as it does in their papers: `sample(steps=T)` uses T, a bare call uses the number of steps their papers used, and
`reference_steps` fixes it.

Only a step multiplies x̂ by κ. The last denoising returns x̂ itself, and a correction divided by κ would throw the draw by as much as
1/κ ∝ T times the published correction. So a draw ends with the prior's denoiser, as in DPS's Algorithm 1, which returns x̂₀. For the same
reason `pc` is refused: its Langevin corrections multiply x̂ by τ, whatever T is.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor

from ..core.errors import InputError
from ..samplers import PredictorCorrector, Sampler
from .base import Evaluation, Posterior


@dataclass
class Stepwise(Posterior):
    """reference_steps: the T in κ."""

    published_steps: ClassVar[int]

    reference_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference_steps is not None and (not isinstance(self.reference_steps, int) or self.reference_steps < 1):
            raise InputError(f"reference_steps must be a positive integer, got {self.reference_steps!r}")

    def finish(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        x_hat = self.prior(x_t, sigma)
        return Evaluation(x_hat, prior=x_hat)

    def for_draw(self, sampler: Sampler, steps: int) -> Self:
        if isinstance(sampler, PredictorCorrector) and sampler.corrections:
            raise InputError(
                f"method {self.method!r} is defined as a correction of a step and cannot be used in the Langevin corrections of "
                "sampler 'pc'; use 'ddpm', or another method"
            )
        if self.reference_steps is not None:
            return self
        new = copy.copy(self)
        new.reference_steps = steps
        return new

    @property
    def response(self) -> float:
        """κ = ∂x_s/∂x̂ of a DDPM step."""
        steps = self.reference_steps or self.published_steps
        return -math.expm1(-2 * math.log(self.prior.sigma_max / self.sigma_min) / steps)
