"""The variance-exploding noise levels: log-linear from sigma_max down to sigma_min.

The default range is for samples of unit size; a prior multiplies it by its own `scale`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import InputError

SIGMA_MIN, SIGMA_MAX = 1e-3, 1e2


def schedule(steps: int, sigma_min: float = SIGMA_MIN, sigma_max: float = SIGMA_MAX) -> Tensor:
    """Compute log-linear noise levels from `sigma_max` down to `sigma_min`, `(steps + 1,)` in float64."""
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise InputError(f"steps must be a positive integer, got {steps!r}")
    if not 0 < sigma_min < sigma_max < math.inf:
        raise InputError(f"noise levels must satisfy 0 < sigma_min < sigma_max, got {sigma_min} and {sigma_max}")
    return torch.linspace(math.log(sigma_max), math.log(sigma_min), steps + 1, dtype=torch.float64).exp()
