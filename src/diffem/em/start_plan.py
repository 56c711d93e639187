"""The plan of the Gaussian start if the recipe leaves rounds or observations open.

The Gaussian start is only the beginning of EM. Additional rounds take time, and after some rounds the prediction of
other observations gets worse. A part of the observations is therefore held out, and the fit ends when their prediction
stops improving. The work is limited by a number of floating-point operations, not by a clock, so that a run is
reproducible. If exact posterior moments exceed the limit they are sampled, and if that is not enough fewer observations
are used.
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

WORK = 2e11, 2e13  # floating-point operations on a CPU and on a GPU, about 10 seconds
ROUNDS = 64  # largest number of rounds
EXPECTED_ROUNDS = 16  # rounds that the work is planned for
FIXED_ROUNDS = 16  # rounds if no likelihood can be computed
HELD_OUT, ENOUGH = 128, 8  # largest number of held-out observations, and at most one in 8
PER_ENTRY = 4  # observations per entry of x that a full covariance needs


@dataclass(frozen=True)
class StartPlan:
    """Arguments of `fit_gaussian`.

    Attributes:
        rounds: The largest number of rounds.
        tolerance: See `Gaussian.tolerance`.
        moments: Exact or sampled posterior moments.
        observations: Indices of the fitted observations; None for all.
        held_out: Indices of the held-out observations; None for none.
    """

    rounds: int
    tolerance: float
    moments: Moments
    observations: torch.Tensor | None
    held_out: torch.Tensor | None


def with_possible_rank(options: Gaussian, obs: Observations) -> Gaussian:
    """The options, with a full covariance if `rank` is not below the number of entries of a sample."""
    impossible = options.rank is not None and options.rank >= math.prod(obs.x_shape)
    return options.model_copy(update={"rank": None}) if impossible else options


def plan_start(options: Gaussian, obs: Observations, device: torch.device, seed: int) -> StartPlan:
    """Plan the fit of the recipe's section `gaussian`, and choose `rounds` and `observations` if they are open."""
    options = with_possible_rank(options, obs)
    n, order = len(obs), Stream(seed, "gaussian subset").permutation(len(obs))
    if options.rounds is not None:
        some = options.observations or n
        chosen = order[:some].sort().values if some < n else None
        return StartPlan(options.rounds, options.tolerance, "exact", chosen, None)
    if options.rank is None and is_complete(Batches(obs, device=device)):
        return StartPlan(ROUNDS, options.tolerance, "exact", None, None)  # the fit has a closed form
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
    """Floating-point operations per observation and round, weighted by their speed."""

    exact: float
    sampled: float
    dense: bool  # whether A must be applied, because its information is not diagonal


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
    """Return the kind of moments and the number of observations that the work allows; exact moments if possible."""
    n, cost = len(obs), _cost(obs, options.rank)
    exact, sampled = (int(work / (EXPECTED_ROUNDS * each)) for each in (cost.exact, cost.sampled))
    enough = min(n, PER_ENTRY * (math.prod(obs.x_shape) if options.rank is None else options.rank))
    if exact >= enough or sampled <= exact:
        return "exact", max(exact, min(n, enough))
    return "sampled", max(sampled, enough)
