r"""Tweedie moment projected diffusion (Boys et al. 2023): V[x | x_t] by its row sums, V ≈ diag(σ² Jᵀ1).

Right when V is diagonal. Row sums can be negative; a variance cannot, so they are set to 0 there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.shapes import per_sample
from .base import Linearised
from .explicit import ExplicitCovariance


@dataclass
class TMPD(ExplicitCovariance):
    method: ClassVar[str] = "tmpd"

    def covariance(self, prior: Linearised, x_t: Tensor, sigma: Tensor) -> Callable[[Tensor], Tensor]:
        variances = per_sample(sigma, x_t) ** 2 * prior.vjp(torch.ones_like(x_t)).clamp(min=0)
        return lambda w: variances * w
