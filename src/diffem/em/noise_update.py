r"""The M-step of unknown noise levels, from the residuals of a lap's draws.

At the maximum of the likelihood, E[(y − Ax)_j² | y] = σ² on average at every measured value j. Values that vary freely
under the prior reproduce whatever level the draws were made with, and only values that the prior and the other values
determine give information. With w_j = 1 − V[(Ax)_j | y]/σ², the share of a residual that is noise (1 for a constant
value, near 0 for a free one),

    σ² ← σ² + Σ w_j² (r_j² + c_j − σ²) / Σ w_j⁴,      r = y − Ax,

is a Newton step that weights every value by its information. Any weights that depend only on the position j have the
correct fixed point. They are computed from pairs of exact posterior draws of the Gaussian start. The last denoising of
a draw, at the level s (`observations/last_levels.py`), reduces the variance of values that vary freely. The correction
c_j restores it, with g_j = ‖A_j‖²:

    c_j = (1 − w_j)(1/(g_j s²) + 1/σ²)⁻¹.

Draws of an undertrained network vary even where the data are constant. This reduces the residuals, and the estimated
level would decrease from lap to lap. Therefore the estimate from the draws is averaged with that of the Gaussian start,
each weighted by its precision. The error of the former includes a systematic part; the error of the latter is large if
the start did not determine the levels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.shapes import per_sample
from ..linalg import UnknownNoise
from ..observations import Observations
from ..observations.last_levels import last_levels
from ..observations.levels import with_levels
from ..operators.gain import mean_gain
from ..priors import GaussianPrior
from ..priors.levels import NORMAL95, NoiseLevels, with_known_noise
from ..priors.marginal import measured_values
from ..runs.draws import DrawStore

PAIRS = 2048  # observations that the weights are computed from
SLOWEST = 0.5  # smallest information per weight that a step divides by; a smaller one amplifies errors of the draws
CHANGE = 4.0  # factor by which σ² may change in a lap
SYSTEMATIC = 0.1  # systematic relative error of levels estimated from a network's draws, added to the standard error
UNDETERMINED = 0.5  # error of log σ of a start that did not determine it
WEIGHTS_LAP = 1 << 22  # a lap number that no lap has, so that these random numbers are used nowhere else


@torch.no_grad()
def noise_shares(prior: GaussianPrior, obs: Observations, seed: int) -> Tensor:
    """w_j of every measured value: the share of its residual that is noise under the Gaussian start.

    Args:
        prior: The Gaussian start, with its noise levels.
        obs: The observations, with unknown levels.

    Returns:
        `(G, *measurement)` for G groups of observations, otherwise `(1, *measurement)`.
    """
    some = obs[: min(len(obs), PAIRS)].to(prior.mean.device)
    labels, count = observation_groups(some)
    some = with_known_noise(some, prior.noise)
    first, second = (prior.draw_posterior(some, seed=seed, lap=WEIGHTS_LAP, draw=d) for d in (0, 1))
    spread = 0.5 * some.A(first - second).double().square()
    ratio = spread / some.cov.diagonal(tuple(some.y.shape[1:])).double()
    inside = measured_values(some).reshape(some.y.shape)
    total, numbers = (torch.zeros(count, *some.y.shape[1:], dtype=torch.float64, device=ratio.device) for _ in range(2))
    total.index_add_(0, labels, torch.where(inside, ratio, 0))
    numbers.index_add_(0, labels, inside.double())
    return torch.where(numbers > 0, 1 - total / numbers.clamp(min=1), 0).clamp(0, 1)


def observation_groups(obs: Observations) -> tuple[Tensor, int]:
    """The group of every observation, `(n,)`, and the number of groups: one if groups label measured values."""
    cov = obs.cov
    assert isinstance(cov, UnknownNoise)
    if cov.is_per_value:
        return torch.zeros(len(obs), dtype=torch.int64, device=obs.y.device), 1
    return cov.groups.expand(len(obs)), cov.count


@torch.no_grad()
def updated_levels(
    levels: NoiseLevels, obs: Observations, draws: DrawStore, shares: Tensor, sigma_min: float | None
) -> NoiseLevels:
    """The levels after the draws of a lap, with standard errors over observations.

    Args:
        levels: The levels that the draws were made with.
        obs: The training observations, with unknown levels.
        shares: w of `noise_shares`.
        sigma_min: That of the prior of the draws, whose last step returns a mean; None for exact draws.
    """
    variance = levels.tensor().square()
    totals, squares, weights, information = (torch.zeros_like(variance) for _ in range(4))
    for k in range(len(draws)):
        first, end = draws.range(k)
        part, x = obs[first:end].to(torch.device("cpu")), draws.read(k)
        assert isinstance(part.cov, UnknownNoise)
        groups, inside = part.cov.group_of_values(part.y).expand_as(part.y), measured_values(part).reshape(part.y.shape)
        known, w = with_levels(part, levels.tensor()), shares.cpu()[observation_groups(part)[0]]
        level = variance[groups]
        square = torch.stack([known.residual(draw.to(part.y)).double().square() for draw in x]).mean(0)
        if sigma_min is not None:
            gain = mean_gain(part.A, part.y).double()
            free = gain * per_sample(last_levels(known, sigma_min), gain).square()
            square = square + (1 - w) / (1 / free.clamp(min=1e-300) + 1 / level)
        u = torch.where(inside, w.square(), 0)
        for total, values in ((weights, u), (information, u * w.square())):
            total.index_add_(0, groups.flatten(), values.expand_as(part.y).flatten())
        excess = torch.zeros(len(part), len(variance), dtype=torch.float64)
        excess.scatter_add_(1, groups.flatten(1), (u * (square - level)).flatten(1))
        totals, squares = totals + excess.sum(0), squares + excess.square().sum(0)
    divisor = torch.maximum(information, SLOWEST * weights).clamp(min=1e-300)
    new = (variance + totals / divisor).clamp(variance / CHANGE, variance * CHANGE)
    error = squares.sqrt() / information.clamp(min=1e-300) / (2 * new)
    return NoiseLevels.of(new.sqrt(), error.clamp(max=10.0), levels.is_determined)


def combined(start: NoiseLevels | None, lap_levels: NoiseLevels) -> NoiseLevels:
    """The levels from the draws of a lap, averaged with those of the start."""
    if start is None:
        return lap_levels
    first, second = (torch.tensor(levels.error, dtype=torch.float64) for levels in (start, lap_levels))
    precision = first.clamp(min=1e-6 if start.is_determined else UNDETERMINED) ** -2
    further = (second.square() + SYSTEMATIC**2) ** -1
    total = precision + further
    log = (precision * start.tensor().log() + further * lap_levels.tensor().log()) / total
    error = total.rsqrt()
    if not start.is_determined:  # the draws of a lap do not lower the largest level that the data allow
        error = error.maximum(first + (start.tensor().log() - log) / NORMAL95)
    return NoiseLevels.of(log.exp(), error, start.is_determined)
