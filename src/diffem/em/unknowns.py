"""The unknowns that a run estimates besides the prior: noise levels, parameters of the operators, or none."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..observations import Observations
from ..observations.lazy import as_lazy
from ..observations.levels import level_count
from ..operators.learned import is_learned
from ..priors import GaussianPrior, OperatorParameters, Prior
from ..priors.base import known_observations
from ..priors.parameter_scoring import score_parameters
from ..priors.parameters import with_parameters
from ..runs.draws import DrawStore
from ..runs.recipe import Recipe
from .noise_start import noise_start
from .noise_update import combined, noise_shares, updated_levels
from .parameter_update import draw_scores, updated_parameters
from .start import Fitting, gaussian_start

Start = tuple[GaussianPrior, dict[str, Any]]  # the Gaussian start, and the metrics of its fit


class Unknowns:
    """The case without unknowns. Subclasses estimate theirs at the start of a run and after the draws of every lap.

    The prior of a lap contains the estimates of that lap, and the next lap draws with them.

    Args:
        obs: All observations of the run.
        index: `(n,)`. The positions of the training observations.
        recipe: The recipe of the run.
    """

    is_active = False

    def __init__(self, obs: Observations, index: Tensor, recipe: Recipe) -> None:
        self.obs, self.index, self.recipe = obs, index, recipe

    def with_estimates(self, prior: Prior) -> Observations:
        """The observations with the estimates in a prior of this run."""
        return known_observations(prior, self.obs)

    def start(self, fitting: Fitting) -> Start:
        """The Gaussian start, which contains the first estimates, and the metrics of the fit."""
        return gaussian_start(self.recipe, self._train(), fitting)

    def complete(self, prior: Prior, fitting: Fitting) -> None:
        """Add the first estimates to a given prior that has none."""

    def update(self, prior: Prior, before: Prior, start: Prior, draws: DrawStore) -> None:
        """Set the estimates of a lap's prior.

        Args:
            prior: The prior of the lap.
            before: The prior that the draws were made with.
            start: The start of the run.
            draws: The posterior draws of the training observations.
        """

    def metrics(self, prior: Prior, lap: int) -> dict[str, Any]:
        """The estimates as metrics of a lap, with notes in words."""
        return {}

    def _train(self) -> Observations:
        return as_lazy(self.obs)[self.index]


class NoiseLearner(Unknowns):
    """Estimates the noise levels of observations made with `sigma="learn"`."""

    is_active = True

    def start(self, fitting: Fitting) -> Start:
        return noise_start(self.recipe, self._train(), fitting)

    def complete(self, prior: Prior, fitting: Fitting) -> None:
        if prior.noise is None:
            prior.noise = self.start(fitting)[0].noise

    def update(self, prior: Prior, before: Prior, start: Prior, draws: DrawStore) -> None:
        assert before.noise is not None
        train = self._train()
        if (gaussian := _gaussian_of(start)) is not None:
            shares = noise_shares(gaussian, train, self.recipe.seed)
        else:  # every value counts the same, as in plain expectation–maximisation
            shares = torch.ones(level_count(train), *train[:1].y.shape[1:], dtype=torch.float64)
        sigma_min = None if isinstance(before, GaussianPrior) else before.sigma_min
        prior.noise = combined(start.noise, updated_levels(before.noise, train, draws, shares, sigma_min))

    def metrics(self, prior: Prior, lap: int) -> dict[str, Any]:
        """The levels, their 95 % intervals, their geometric mean, and notes in words."""
        if prior.noise is None:
            return {}
        levels = prior.noise
        low, high = levels.interval()
        mean = math.exp(sum(map(math.log, levels.sigma)) / len(levels.sigma))
        name = "the noise level is" if len(levels.sigma) == 1 else "the noise levels are"
        used = "" if levels.is_determined else f"; the run uses {', '.join(f'{s:.3g}' for s in levels.sigma)}"
        notes = [f"{name} {levels}, with 95 % confidence{used}"]
        if not levels.is_determined and lap == 0:
            notes.append(UNDETERMINED_NOISE)
        lists = {"noise_levels": list(levels.sigma), "noise_low": list(low), "noise_high": list(high)}
        return {"noise_sigma": mean, **lists, "noise_determined": levels.is_determined, "notes": notes}


def _gaussian_of(start: Prior) -> GaussianPrior | None:
    """The Gaussian start of a run, or of the run that a given prior continues; None if the prior has no covariance."""
    if isinstance(start, GaussianPrior):
        return start
    if (cov := start.covariance()) is None:
        return None
    gaussian = GaussianPrior(start.mean, cov)
    gaussian.noise = start.noise
    return gaussian


UNDETERMINED_NOISE = (
    "the observations do not determine the noise level: every smaller level explains them equally well, with the rest "
    "of the variation as detail of x. The run uses an estimate of the largest level that the observations allow. "
    "Repeated measurements, constant values, or operators whose rows overlap would determine the level; otherwise "
    "measure the noise without a signal and pass sigma as a number"
)


class ParameterLearner(Unknowns):
    """Estimates the parameters of operators made with `Function(..., learn=...)`."""

    is_active = True

    def start(self, fitting: Fitting) -> Start:
        parameters = self._first(fitting.progress)
        known = as_lazy(with_parameters(self._train(), parameters))
        prior, notes = gaussian_start(self.recipe, known, fitting)
        prior.operator_parameters = parameters
        return prior, notes

    def _first(self, progress: bool | None) -> OperatorParameters:
        return score_parameters(self._train(), progress)[0]

    def complete(self, prior: Prior, fitting: Fitting) -> None:
        if prior.operator_parameters is None:
            prior.operator_parameters = self._first(fitting.progress)

    def update(self, prior: Prior, before: Prior, start: Prior, draws: DrawStore) -> None:
        first, current = start.operator_parameters, before.operator_parameters
        assert first is not None
        assert current is not None
        train = self._train()
        score, square = draw_scores(current, train, draws)
        prior.operator_parameters = updated_parameters(current, first, score, square, len(train))

    def metrics(self, prior: Prior, lap: int) -> dict[str, Any]:
        parameters = prior.operator_parameters
        if parameters is None:
            return {}
        notes = [f"{parameters}, with 95 % confidence"]
        unknown = [name for name, _, _, known in parameters.entries() if not known]
        if unknown and lap == 0:
            notes.append(UNDETERMINED_PARAMETERS.format(names=", ".join(unknown)))
        if not parameters.is_settled and lap == 0:
            notes.append(UNSETTLED)
        values = {name: value for name, value, _, _ in parameters.entries()}
        errors = {name: error for name, _, error, _ in parameters.entries()}
        return {
            "operator_parameters": values,
            "operator_errors": errors,
            "operator_determined": parameters.is_determined,
            "notes": notes,
        }


UNDETERMINED_PARAMETERS = (
    "the observations do not determine {names}: other values explain them equally well, each with a different prior. "
    "The run uses the initial value. Observations whose operators differ in a known way would determine it, for "
    "example several widths in a known ratio, or some observations through a known operator"
)

UNSETTLED = (
    "the estimates of the operator's parameters were still changing after the last step: their initial values may be "
    "too far from the truth. Start closer, or try several initial values and compare the predictive log-likelihood of "
    "lap 0"
)


def unknowns_of(obs: Observations, index: Tensor, recipe: Recipe) -> Unknowns:
    """Return the estimator for the unknowns of observations; `validate` rejects observations with both kinds."""
    if level_count(obs):
        return NoiseLearner(obs, index, recipe)
    return ParameterLearner(obs, index, recipe) if is_learned(obs[:1].A) else Unknowns(obs, index, recipe)
