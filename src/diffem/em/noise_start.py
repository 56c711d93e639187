"""Unknown noise levels at the start of a run, and the Gaussian start with them.

- Operators that measure single entries of x: the level is that of constant entries if there are any
  (`priors/noise_constant.py`). Otherwise the covariance of y is fitted without a noise term and then split into signal
  and noise (`priors/noise_split.py`). Groups of observations are treated one by one.
- Operators whose rows overlap: the levels of maximum likelihood (`priors/noise_scoring.py`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..linalg import UnknownNoise
from ..observations import Observations
from ..observations.lazy import as_lazy
from ..observations.levels import with_levels
from ..priors import GaussianPrior, fit_gaussian
from ..priors.levels import NoiseLevels
from ..priors.noise_constant import level_of_constants, varies
from ..priors.noise_scoring import score_noise
from ..priors.noise_split import measures_entries, split_noise
from ..runs.recipe import Recipe
from .start import Fitting, gaussian_start, set_noise_range
from .start_plan import plan_start

NEGLIGIBLE = 1e-3  # noise of the first fit, relative to the smallest standard deviation of a measured value
SPREAD_OBSERVATIONS = 4096  # observations whose spread is measured
SCORED_OBSERVATIONS = 1024  # observations to which levels are fitted by scoring
FAR_ABOVE = 10.0  # ratio of variances
SIZE = 512  # largest number of values in a sample for which levels are fitted by scoring


def noise_start(recipe: Recipe, obs: Observations, fitting: Fitting) -> tuple[GaussianPrior, dict[str, Any]]:
    """Fit the Gaussian start and the noise levels, which it carries as `noise`.

    Args:
        obs: Observations made with `sigma="learn"`.
        fitting: The device and the checkpoint.

    Returns:
        The start, and the metrics of the fit.
    """
    cov = obs[:1].cov
    assert isinstance(cov, UnknownNoise)
    if not measures_entries(obs[:1]):
        levels = _scored(recipe, obs, fitting.device)
    elif cov.is_per_value and cov.count > 1:
        return _split(recipe, obs, cov.groups.flatten(), fitting)
    elif cov.count > 1:
        levels = _by_group(recipe, obs, fitting)
    elif (found := level_of_constants(obs[: min(len(obs), SPREAD_OBSERVATIONS)])) is not None:
        levels = found
    else:
        return _split(recipe, obs, _one_group(obs), fitting)
    prior, notes = gaussian_start(recipe, with_levels(obs, levels.tensor()), fitting)
    prior.noise = levels
    return prior, notes


def _one_group(obs: Observations) -> Tensor:
    """One group for all entries of x, `(N,)`."""
    return torch.zeros(math.prod(obs.x_shape), dtype=torch.int64)


def _split(recipe: Recipe, obs: Observations, groups: Tensor, fitting: Fitting) -> tuple[GaussianPrior, dict[str, Any]]:
    """Split the covariance of y: the start has the covariance of the signal, and the rest gives the noise levels.

    Args:
        groups: `(N,)`. The noise level of each entry of x.
    """
    count = int(groups.max()) + 1
    known = with_levels(obs, torch.full((count,), _negligible(obs), dtype=torch.float64))
    prior, notes = gaussian_start(recipe, known, fitting)
    chosen = plan_start(recipe.gaussian, known, fitting.device, recipe.seed).observations
    fitted = known if chosen is None else known[chosen]
    some = fitted[: min(len(fitted), SPREAD_OBSERVATIONS)].to(fitting.device)
    signal, levels = split_noise(prior, some, groups.to(fitting.device), len(fitted))
    set_noise_range(signal, recipe)
    signal.noise = levels
    return signal, notes


def _by_group(recipe: Recipe, obs: Observations, fitting: Fitting) -> NoiseLevels:
    """One level per group of observations, each from the observations of its group."""
    whole, fitting = as_lazy(obs), replace(fitting, state_file=None)  # a checkpoint is that of one fit
    labels = torch.cat([_labels(part) for part in whole.parts()])
    found, spreads = [], []
    for group in range(int(labels.max()) + 1):
        rows = (labels == group).nonzero().flatten()
        part = whole[rows].to(torch.device("cpu"))
        one = Observations(part.y, part.A, sigma="learn", adaptive=obs.adaptive)
        levels = level_of_constants(one[: min(len(one), SPREAD_OBSERVATIONS)])
        if levels is None:
            levels = _split(recipe, one, _one_group(one), fitting)[0].noise
        assert levels is not None
        found.append(levels)
        spreads.append(float(_variances(one).max()))
    # uncorrelated values are noise if they vary far more than those of another group, whose signal is the same
    least = min(spreads)
    return NoiseLevels(
        tuple(levels.sigma[0] for levels in found),
        tuple(levels.error[0] for levels in found),
        all(levels.is_determined or levels.sigma[0] ** 2 > FAR_ABOVE * least for levels in found),
    )


def _labels(obs: Observations) -> Tensor:
    assert isinstance(obs.cov, UnknownNoise)
    return obs.cov.groups.cpu()


def _scored(recipe: Recipe, obs: Observations, device: torch.device) -> NoiseLevels:
    """The levels of maximum likelihood under a Gaussian with full covariance."""
    size = math.prod(obs.x_shape)
    if size > SIZE:
        raise InputError(
            f"sigma='learn' with {type(obs[:1].A).__name__} operators takes samples of at most {SIZE} numbers, these "
            f"have {size}: measure the noise where there is no signal, and give sigma as a number"
        )
    some = obs[: min(len(obs), SCORED_OBSERVATIONS)].to(device)

    def fit(known: Observations, start: GaussianPrior | None, rounds: int) -> GaussianPrior:
        return fit_gaussian(known, rounds=rounds, tolerance=1e-7, start=start, seed=recipe.seed, progress=False)

    return score_noise(some.to(torch.float64), fit, len(obs) / len(some))[1]


def _negligible(obs: Observations) -> float:
    """A noise level that is negligible compared with the spread of every measured value."""
    return NEGLIGIBLE * float(_variances(obs).min().sqrt())


def _variances(obs: Observations) -> Tensor:
    """The variances of the measured values that vary, over some observations."""
    some = obs[: min(len(obs), SPREAD_OBSERVATIONS)]
    y, measured = some.y.double(), some.measured
    inside = torch.ones_like(y, dtype=torch.bool) if measured is None else measured.expand_as(y)
    count = inside.sum(0)
    mean = torch.where(inside, y, 0).sum(0) / count.clamp(min=1)
    variance = torch.where(inside, (y - mean).square(), 0).sum(0) / (count - 1).clamp(min=1)
    varying = variance[(count > 1) & varies(variance)]
    if len(varying) == 0:
        raise InputError("sigma='learn' needs values that vary: every measured value is the same in all observations")
    return varying
