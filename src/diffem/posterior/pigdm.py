r"""Pseudo-inverse guided diffusion: V = r I with r = σ²/(1 + σ²/s²), and the score weighted by r instead of σ².

    E[x | x_t, y] ≈ x̂ + r/κ · Jᵀ Aᵀ (Σ_y + r A Aᵀ)⁻¹ (y − A x̂)

with κ as in `stepwise.py`, published as a correction of x_s, and s the scale of the prior, 1 in the paper.

Song et al., Pseudoinverse-Guided Diffusion Models for Inverse Problems, 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.shapes import per_sample
from .base import LinearisedDenoiser
from .heuristic import Identity, unit_prior_variance
from .stepwise import StepwisePosterior


@dataclass
class PiGDM(StepwisePosterior, Identity):
    """Pseudo-inverse guided diffusion (ΠGDM, Song et al. 2023).

    Attributes:
        reference_steps: See `StepwisePosterior`.
    """

    method: ClassVar[str] = "pigdm"
    published_steps: ClassVar[int] = 100

    def correction(self, prior: LinearisedDenoiser, pullback: Tensor, sigma: Tensor) -> Tensor:
        r = unit_prior_variance(sigma, self.prior.scale)
        return per_sample(r / self.response, pullback) * prior.vjp(pullback)
