r"""DPS and ΠGDM were published as corrections to x_s after a step, not to x̂.

A change c of x̂ moves x_s by κc, where κ = ∂x_s/∂x̂ depends on the sampler (`Sampler.response`). On a log-linear schedule
of T steps it is the same in every step: 1 − q² for DDPM and 1 − q for DDIM and Heun's method, q = (σ_min/σ_max)^{1/T}.
To act as denoisers, these methods divide their correction by κ, so every sampler moves x_s as far as published in each
step. Their strength therefore depends on the number of steps, as in their papers: `sample(steps=T)` uses T and its
sampler, a bare call uses DDPM down to the prior's σ_min with the number of steps of the papers, and `reference_steps`
overrides T.

Only a step multiplies x̂ by κ. The last denoising returns x̂ itself, so a correction divided by κ would be 1/κ ∝ T
times the published one. A draw therefore ends with the prior's denoiser, as in DPS's Algorithm 1, which returns x̂₀.
For the same reason the sampler `pc` is rejected: its Langevin corrections multiply x̂ by τ for any T.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import ClassVar, Self

from torch import Tensor

from ..core.errors import InputError
from ..samplers import DDIM, PredictorCorrector, Sampler
from .base import Posterior
from .evaluation import Evaluation


@dataclass
class StepwisePosterior(Posterior):
    """Base of methods that were published as corrections of a step.

    Attributes:
        reference_steps: The number of steps T in κ. Default: that of the draw, or of the paper for a bare call.
    """

    published_steps: ClassVar[int]

    reference_steps: int | None = None
    _sampler: Sampler = field(init=False, repr=False, default_factory=lambda: DDIM(eta=1.0))  # the one of the draw
    _last_level: float | None = field(init=False, repr=False, default=None)  # the one of the draw

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.reference_steps is not None and (not isinstance(self.reference_steps, int) or self.reference_steps < 1):
            raise InputError(f"reference_steps must be a positive integer, got {self.reference_steps!r}")

    def finish(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        return Evaluation(self.prior(x_t, sigma))

    def for_draw(self, sampler: Sampler, steps: int, last_level: float) -> Self:
        if isinstance(sampler, PredictorCorrector) and sampler.corrections:
            raise InputError(
                f"method {self.method!r} is defined as a correction of a step and cannot be used in the "
                "Langevin corrections of sampler 'pc'; use 'ddpm', or another method"
            )
        new = copy.copy(self)
        new._sampler, new._last_level = sampler, last_level
        if self.reference_steps is None:
            new.reference_steps = steps
        return new

    @property
    def response(self) -> float:
        """κ = ∂x_s/∂x̂ of a step."""
        steps = self.reference_steps or self.published_steps
        last_level = self._last_level or self.prior.sigma_min
        return self._sampler.response(math.log(self.prior.sigma_max / last_level) / steps)
