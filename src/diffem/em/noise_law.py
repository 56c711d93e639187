r"""The distribution of the diffusion noise levels in training.

Capacity and training of a network are limited, and this distribution decides which noise levels they serve. Both laws
are distributions of log σ ∈ [log σ_min, log σ_max]:

    beta         log σ = log σ_min + t log(σ_max/σ_min),  t ~ Beta(3, 3), the median of five uniform numbers (the paper)
    lognormal    log σ ~ N(mean, std²) restricted to the range, by inverting its distribution function (Karras et al.
                 2022)

Over [10⁻³, 10²], Beta(3, 3) has 22 % of its mass below σ = 0.05, where images are nearly noise-free; N(−0.5, 1.2²) has
2 %. (Karras et al. use N(−1.2, 1.2²) for data of standard deviation 0.5; for data of unit scale that is N(−0.5, 1.2²).)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..runs.recipe import Noise

LEAST_MASS = 0.5  # smallest accepted mass of a normal law inside the range of noise levels


@dataclass(frozen=True)
class NoiseLaw:
    """A distribution of log σ.

    Attributes:
        uniforms: The number of uniform numbers per sample.
        log_sigma: Maps uniform numbers `(n, uniforms)` to log σ `(n,)`.
    """

    uniforms: int
    log_sigma: Callable[[Tensor], Tensor]


def noise_law(options: Noise, sigma_min: float, sigma_max: float) -> NoiseLaw:
    """Return the law of `train.noise` for noise levels in [sigma_min, sigma_max], relative to the scale of the data."""
    low, high = math.log(sigma_min), math.log(sigma_max)
    return _beta(low, high) if options.law == "beta" else _lognormal(low, high, options.mean, options.std)


def _beta(low: float, high: float) -> NoiseLaw:
    return NoiseLaw(5, lambda u: low + (high - low) * u.median(1).values)


def _lognormal(low: float, high: float, mean: float, std: float) -> NoiseLaw:
    first, last = (0.5 * math.erfc(-(end - mean) / (std * math.sqrt(2))) for end in (low, high))
    if last - first < LEAST_MASS:
        raise InputError(
            f"train.noise: only {last - first:.0%} of a log-normal law with mean {mean:g} and std {std:g} lies "
            f"between sigma_min and sigma_max, whose logarithms are {low:.3g} and {high:.3g}; at least "
            f"{LEAST_MASS:.0%} must"
        )

    def log_sigma(u: Tensor) -> Tensor:
        # the clamp only corrects rounding at the ends
        return (mean + std * torch.special.ndtri(first + (last - first) * u[:, 0])).clamp(low, high)

    return NoiseLaw(1, log_sigma)
