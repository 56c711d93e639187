r"""The noise level from entries of x that are constant.

An entry of x that is the same in all observations is measured as its value plus noise: its measured values vary by σ²
and are uncorrelated with all other values. Such entries are found by both properties: they have the smallest variances,
equal up to sampling, and for entry j the sum Σ_l n_jl ρ_jl² over the other entries l has the mean N − 1 of a χ²
variable, with ρ_jl the correlation over the n_jl observations that measure both. Entries of equal variance that are
correlated with others, such as standardised columns of a table, fail the second test, and so do entries that too few
observations measure together with others. Entries that vary by rounding errors alone, such as the corners of images
that were rotated or masked, contain no noise and are left out.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..observations import Observations
from .levels import NoiseLevels
from .marginal import measured_values

FEWEST = 3  # smallest number of constant entries that determine the level
ROUNDING = 1e-5  # deviation relative to the largest one, below which values differ by rounding errors only
MEASURED = 30  # smallest number of observations that measure an entry, or a pair of entries
COMPARED = 0.5  # smallest fraction of the other entries that an entry is compared with
MOST = 0.9  # largest fraction of constant entries: otherwise y is white, like noise or a white signal
DIFFERENT = 3.0  # standard errors by which a variance is larger than that of the constant entries
CORRELATED = 4.0  # standard deviations of χ² above its mean, beyond which an entry is correlated with others


def level_of_constants(obs: Observations) -> NoiseLevels | None:
    """The noise level, one for all values, from constant entries of x; None if there are fewer than three.

    Args:
        obs: Observations that measure single entries of x, `(n, N)` when flattened; the noise may be unknown.
    """
    inside, y = measured_values(obs), obs.y.flatten(1).double()
    count = inside.sum(0).double()
    mean = torch.where(inside, y, 0).sum(0) / count.clamp(min=1)
    centred = torch.where(inside, y - mean, 0)
    variance = centred.square().sum(0) / (count - 1).clamp(min=1)
    usable = (count >= MEASURED) & varies(variance)
    candidates = [
        j for j in _equal_variances(variance, count, usable) if _is_uncorrelated(j, centred, inside, variance)
    ]
    if len(candidates) < FEWEST:
        return None
    determined = len(candidates) <= MOST * int(usable.sum())
    freedom = (count[candidates] - 1).sum()
    sigma = (((count - 1) * variance)[candidates].sum() / freedom).sqrt()
    return NoiseLevels.of(sigma.reshape(1), (2 * freedom).rsqrt().reshape(1), determined)


def varies(variance: Tensor) -> Tensor:
    """Which values vary by more than rounding errors; variance: `(...)`."""
    return variance > ROUNDING**2 * variance.max()


def _equal_variances(variance: Tensor, count: Tensor, usable: Tensor) -> list[int]:
    """Return the entries with the smallest variances that are equal up to sampling errors."""
    order = torch.where(usable, variance, torch.inf).argsort()[: int(usable.sum())].tolist()
    found: list[int] = []
    for j in order:
        if found:
            weights = count[found]
            pooled = float((weights * variance[found]).sum() / weights.sum())
            if variance[j] > pooled * (1 + DIFFERENT * math.sqrt(2 / float(count[j]))):
                break
        found.append(j)
    return found


def _is_uncorrelated(j: int, centred: Tensor, inside: Tensor, variance: Tensor) -> bool:
    """Whether entry j is shown to be uncorrelated with the others. centred, inside: `(n, N)`; variance: `(N,)`."""
    pairs = (inside[:, j : j + 1] & inside).sum(0).double()
    products = centred[:, j] @ centred
    squares = products.square() / (pairs * variance[j] * variance).clamp(min=1e-300)  # n ρ²
    others = variance > 0
    others[j] = False
    compared = others & (pairs >= MEASURED)
    freedom = int(compared.sum())
    if freedom == 0 or freedom < COMPARED * int(others.sum()):
        return False
    return float(squares[compared].sum()) <= freedom + CORRELATED * math.sqrt(2 * freedom)
