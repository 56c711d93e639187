"""Calibration of posterior draws if the truth is known: coverage, ranks and the continuous ranked probability score."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.randomness import Stream
from .estimate import Estimate, clustered_mean
from .inputs import require_draws


@in_default_modes
def coverage(draws: Tensor, truth: Tensor, level: float = 0.9) -> Estimate:
    """Fraction of entries whose truth lies in the central interval of k draws; equal to `level` for calibrated draws.

    It is computed from ranks: among draws from its own distribution the truth has every rank 0 … k with probability
    1/(k + 1). The interval leaves t = (1 − level)(k + 1)/2 ranks out at each end. If t is not an integer, the rank at
    the edge counts by the share that lies inside, so the coverage of calibrated draws is exactly `level` for any k ≥ 1.
    Below 2/(1 − level) − 1 draws (19 for 90 %) that edge is the outermost rank: a truth beyond all draws then counts as
    1 − t inside (0.55 for 8 draws), and the result cannot fall lower.

    Args:
        draws: Shape `(k, n, *event)`.
        truth: Shape `(n, *event)`.
        level: Probability of the interval, between 0 and 1.

    Returns:
        The mean over all entries, and its standard error over the n observations.
    """
    require_draws(draws, truth)
    return clustered_mean(covered(draws, truth, level).flatten(1))


def covered(draws: Tensor, truth: Tensor, level: float = 0.9) -> Tensor:
    """Covered share of each entry of the truth, 0 … 1, `(n, *event)`. The mean is the coverage."""
    k = len(draws)
    if not 0 < level < 1 or k < 1:
        raise InputError(
            f"coverage needs a level between 0 and 1 and at least one draw, got {level} and {count_of(k, 'draw')}"
        )
    tail = (1 - level) * (k + 1) / 2
    # rank r is the interval [r, r + 1] of [0, k + 1], of which [tail, k + 1 − tail] is covered
    rank = torch.arange(k + 2, dtype=torch.float64, device=truth.device)
    below = torch.clamp(rank, tail, k + 1 - tail)  # covered up to rank r, plus the tail
    first, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    # a truth that equals some draws gets the mean over their ranks
    return (below[first + equal + 1] - below[first]) / (equal + 1)


def predictive_coverage(draws: Tensor, truth: Tensor, level: float = 0.9) -> Tensor:
    """Coverage per observation, `(n,)`, of the intervals mean ± t √(1 + 1/k) standard deviations, for few draws.

    t is the quantile of Student's distribution with k − 1 degrees of freedom: Gaussian draws of any number k ≥ 2 are
    covered with probability `level` exactly. `coverage` assumes no distribution, but it is less sensitive with fewer
    than 19 draws.
    """
    k = len(draws)
    if k < 2:
        raise InputError(f"an interval needs at least 2 draws, got {k}")
    width = student_quantile((1 + level) / 2, k - 1) * math.sqrt(1 + 1 / k)
    return ((truth - draws.mean(0)).abs() <= width * draws.std(0)).double().flatten(1).mean(1)


def student_quantile(probability: float, degrees: int) -> float:
    """Quantile of Student's t for a probability above one half, by quadrature of the density."""
    # t = √ν tan θ makes the density cos^{ν−1} θ on a bounded interval
    theta = torch.linspace(0, math.pi / 2, 200_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(theta.cos() ** (degrees - 1), theta)
    place = int(torch.searchsorted(mass, mass[-1] * (2 * probability - 1)))
    return math.sqrt(degrees) * math.tan(float(theta[place + 1]))


@in_default_modes
def crps(draws: Tensor, truth: Tensor) -> Tensor:
    r"""The continuous ranked probability score per observation, `(n,)`, averaged over entries, in the units of x:

        E|x − truth| − ½ E|x − x'|,

    both means without bias for k ≥ 2 draws `(k, n, *event)`. It is small for draws that are accurate *and* calibrated.
    """
    require_draws(draws, truth)
    k = len(draws)
    if k < 2:
        raise InputError(f"the score needs at least 2 draws, got {k}")
    near = (draws - truth).abs().mean(0)
    # Σ_ij |x_i − x_j| = 2 Σ_i (2i − k − 1) x_(i) over the sorted draws
    weights = 2 * torch.arange(1, k + 1, dtype=draws.dtype, device=draws.device) - k - 1
    apart = torch.einsum("k,k...->...", weights, draws.sort(0).values) * 2 / (k * (k - 1))
    return (near - apart / 2).flatten(1).mean(1)


def ranks(draws: Tensor, truth: Tensor, seed: int = 0) -> Tensor:
    """Rank of every entry of the truth among its draws, 0 … k, `(n, *event)`; uniform for calibrated draws.

    A truth that equals some draws, as for counts or clipped values, gets one of their ranks at random, so that the
    ranks of calibrated draws are uniform with ties, too.

    Args:
        draws: Shape `(k, n, *event)`.
        truth: Shape `(n, *event)`.
        seed: The seed of that choice.
    """
    require_draws(draws, truth)
    first, equal = (draws < truth).sum(0), (draws == truth).sum(0)
    index = torch.arange(len(truth), device=truth.device)
    u = Stream(seed, "ranks").uniform(index, tuple(truth.shape[1:]))
    return first + (u * (equal + 1)).long().minimum(equal)
