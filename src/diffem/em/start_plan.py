"""How the Gaussian start is fitted where the recipe leaves it open: in seconds, and no longer than it pays.

The start is where EM begins, not its result: rounds that fit it more closely to the observations at hand cost time, and beyond some point
predict other observations worse. So a part of the observations is held out and the fit ends when these are predicted no better. Work is
bounded by a number of floating-point operations, not by a clock, so that the same run starts the same everywhere: where exact
posterior moments exceed it they are sampled, and then fewer observations are used.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..core.randomness import Stream
from ..observations import Observations
from ..observations.batches import Batches
from ..observations.diagonal import diagonalised
from ..priors.fit import Moments
from ..priors.fit_complete import is_complete
from ..priors.fit_sampled import ITERATIONS
from ..runs.recipe import Gaussian

WORK = 2e11, 2e13  # floating-point operations on a CPU and on a GPU: about 10 seconds
ROUNDS = 64  # at most
EXPECTED_ROUNDS = 16  # that work is planned for
FIXED_ROUNDS = 16  # where no likelihood tells when to stop
HELD_OUT, ENOUGH = 128, 8  # observations held out: so many, and at most one of so many
PER_ENTRY = 4  # observations per entry of x, below which a full covariance is poorly determined


@dataclass(frozen=True)
class StartPlan:
    """rounds: at most. moments: as `fit_gaussian` takes them. observations, held_out: which are fitted to and which are held out."""

    rounds: int
    tolerance: float
    moments: Moments
    observations: torch.Tensor | None  # indices; None: all
    held_out: torch.Tensor | None


def plan_start(options: Gaussian, obs: Observations, device: torch.device, seed: int) -> StartPlan:
    """The fit that the recipe's section `gaussian` describes; `rounds` and `observations` that it leaves open are chosen here."""
    n, order = len(obs), Stream(seed, "gaussian subset").permutation(len(obs))
    if options.rounds is not None:
        some = options.observations or n
        chosen = order[:some].sort().values if some < n else None
        return StartPlan(options.rounds, options.tolerance, "exact", chosen, None)
    if options.rank is None and is_complete(Batches(obs, device=device)):
        return StartPlan(ROUNDS, options.tolerance, "exact", None, None)  # in closed form
    held = min(HELD_OUT, n // ENOUGH)
    moments, count = _affordable(options, obs, WORK[device.type == "cuda"])
    count = min(options.observations or count, n - held)
    held_out = order[n - held :].sort().values if held else None
    return StartPlan(
        FIXED_ROUNDS if moments == "sampled" and _cost(obs, options.rank).dense else ROUNDS,
        options.tolerance if held else max(options.tolerance, 1e-5),
        moments,
        order[:count].sort().values,
        held_out,
    )


@dataclass(frozen=True)
class _Cost:
    """Operations per observation and round, at the speed of matrix factorisations."""

    exact: float
    sampled: float
    dense: bool  # whether A is applied as it is: its information is not diagonal


def _cost(obs: Observations, rank: int | None) -> _Cost:
    some = obs[: min(len(obs), 64)]
    values, size = float(some.counts().double().mean()), math.prod(obs.x_shape)
    direct = some.selection() is not None or diagonalised(some) is not None
    applied = 0.0 if direct else 400 * (size + values)  # A and Aᵀ, by transforms or interpolation
    sampled = 2 * ITERATIONS * (size**2 + 40 * size + applied)
    if rank is not None:
        exact = 2 * rank**2 * (size + values) + 40 * rank * (size + values)
        solves = 0.0 if direct or some.A.gram_diagonal(some.y) is not None else 64.0 * (rank + 2)
        return _Cost(exact + solves * applied, math.inf, not direct)
    if direct:
        return _Cost(4 * values**3 + 40 * values**2, sampled, False)
    return _Cost(6 * values * size * (size + values) + size * applied, sampled, True)


def _affordable(options: Gaussian, obs: Observations, work: float) -> tuple[Moments, int]:
    """Exact moments if enough observations can be afforded with them, otherwise sampled ones; and how many observations."""
    n, cost = len(obs), _cost(obs, options.rank)
    exact, sampled = (int(work / (EXPECTED_ROUNDS * each)) for each in (cost.exact, cost.sampled))
    enough = min(n, PER_ENTRY * (math.prod(obs.x_shape) if options.rank is None else options.rank))
    if exact >= enough or sampled <= exact:
        return "exact", max(exact, min(n, enough))
    return "sampled", max(sampled, enough)
