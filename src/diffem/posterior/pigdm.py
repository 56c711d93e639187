r"""Pseudo-inverse guided diffusion (Song et al. 2023): V = r I with r = σ²/(1+σ²), and the score weighted by r instead of σ².

    E[x | x_t, y] ≈ x̂ + r/κ · Jᵀ Aᵀ (Σ_y + r A Aᵀ)⁻¹ (y − A x̂)

with κ as in `stepwise.py`: published as a correction of x_s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..shapes import per_sample
from .base import Linearised
from .heuristic import Identity
from .stepwise import Stepwise


@dataclass
class PiGDM(Stepwise, Identity):
    """reference_steps: see `stepwise.py`."""

    method: ClassVar[str] = "pigdm"
    published_steps: ClassVar[int] = 100

    def correction(self, prior: Linearised, pullback: Tensor, sigma: Tensor) -> Tensor:
        r = sigma**2 / (1 + sigma**2)
        return per_sample(r / self.response, pullback) * prior.vjp(pullback)
