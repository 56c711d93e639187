r"""The last noise level of posterior draws: below the measurement noise, for each observation alone.

The last denoising of a draw, at the level σ, returns a mean, which reduces the variance of a measured value with noise
s by the share σ²/(σ² + s²). Draws end at sigma_min. If s is less than half of sigma_min, they end at a lower level, at
most s/4, so that at most 6 % of the variance is missing.

Draws with the same last level are made together. The levels below sigma_min are sigma_min/2ᵏ, so that observations with
many different noise levels need few batches.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..linalg.inner import accumulate_dtype
from ..operators.gain import mean_gain
from .batches import in_parts
from .features import is_simulated
from .observations import Observations

SHARE = 4  # smallest ratio of the noise to a last level below sigma_min
ROUNDING = 2.0**-10  # subtracted from k, so that rounding errors of round noise levels do not change the level


def last_levels(obs: Observations, sigma_min: float) -> Tensor:
    """The last noise level of a draw for each observation, `(n,)`, in float64 on the CPU.

    Args:
        obs: The observations.
        sigma_min: The last level of the prior, in the units of x.
    """
    k = (SHARE * sigma_min / smallest_noise(obs)).log2() - ROUNDING
    return torch.where(k > 3, torch.ldexp(torch.tensor(sigma_min, dtype=torch.float64), -k.ceil()), sigma_min)


def smallest_noise(obs: Observations) -> Tensor:
    """Smallest standard deviation of the noise of each observation, `(n,)`, in float64 on the CPU.

    In the units of x: σ_y divided by the root mean square norm of a row of A. For correlated noise: that of the most
    precise combination of values. Infinite if nothing is measured, and for a channel, which gives no linear information
    about x.
    """
    if is_simulated(obs):
        return torch.full((len(obs),), torch.inf, dtype=torch.float64)
    return torch.cat([_smallest_noise(part) for part in in_parts(obs, 1024)])


def _smallest_noise(obs: Observations) -> Tensor:
    measured, gain = obs.measured, mean_gain(obs.A, obs.y)
    gain = gain.expand_as(obs.y) if measured is None else torch.where(measured, gain, 0).expand_as(obs.y)
    total = gain.flatten(1).sum(1, dtype=accumulate_dtype(gain.device)).cpu().double()
    counts, variances = obs.counts().cpu(), obs.noise.eigenvalue_floor().cpu().double()
    return torch.where(counts > 0, (variances * counts / total).sqrt(), torch.inf)
