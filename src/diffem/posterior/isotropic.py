r"""The exact E[x | x_t, y] of **every** prior if AᵀΣ_y⁻¹A = γI: noisy samples and unitary transforms of them.

The pivot (`pivot.py`) is then x with isotropic noise of level τ = (σ⁻² + γ)^-½, so the prior's denoiser is exact:

    E[x | x_t, y] = D(m, τ),      m = τ² (x_t/σ² + AᵀΣ_y⁻¹y).

This takes one forward pass, without a Jacobian or an approximation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ..core.errors import InputError
from ..samplers import Sampler
from .base import Posterior
from .evaluation import Evaluation
from .pivot import Pivot


@dataclass
class IsotropicInformation(Posterior):
    """The posterior for operators and noise with AᵀΣ_y⁻¹A = γI, γ being one number per observation."""

    method: ClassVar[str] = "exact"

    _pivot: Pivot = field(init=False, repr=False)
    _gamma: Tensor = field(init=False, repr=False)  # (1 or n,)

    def __post_init__(self) -> None:
        super().__post_init__()
        spectrum = self.obs.information()
        gamma = None if spectrum is None else spectrum.isotropic()
        if spectrum is None or gamma is None:
            raise InputError(
                "method 'exact' needs AᵀΣ_y⁻¹A proportional to the identity (operators.Identity, or all of "
                "k-space, with equal noise on all values), or a MixturePrior with noise given as sigma=...; "
                f"got {self.obs.A} with {self.obs.cov}; use method 'mmps'"
            )
        self._pivot, self._gamma = Pivot(self.obs, spectrum), gamma

    def __getitem__(self, index: Any) -> Self:
        return type(self)(self.prior, self.obs[index])

    def for_draw(self, sampler: Sampler, steps: int, last_level: float) -> Self:
        if sampler.needs_likelihood:
            raise InputError(
                f"method 'exact' needs no correction by particles; use another sampler than {sampler.name!r}"
            )
        return self

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        level = torch.rsqrt(sigma**-2 + self._gamma)
        return Evaluation(self.prior(self._pivot.centre(x_t, sigma), level.expand(len(x_t))))
