r"""Tweedie moment projected diffusion (Boys et al. 2023): V[x | x_t] by its row sums, V ≈ diag(σ² Jᵀ1).

This is exact if V is diagonal. Negative row sums are set to 0, since variances are not negative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.shapes import per_sample
from .base import LinearisedDenoiser
from .explicit import ExplicitCovariance


@dataclass
class TMPD(ExplicitCovariance):
    """Tweedie moment projected diffusion (TMPD, Boys et al. 2023): V ≈ diag(σ_t² Jᵀ1)."""

    method: ClassVar[str] = "tmpd"

    def covariance(self, prior: LinearisedDenoiser, x_t: Tensor, sigma: Tensor) -> Callable[[Tensor], Tensor]:
        variances = per_sample(sigma, x_t) ** 2 * prior.vjp(torch.ones_like(x_t)).clamp(min=0)
        return lambda w: variances * w
