"""What a run estimates besides the prior: noise levels, parameters of the operators, or nothing."""

from __future__ import annotations

from torch import Tensor

from ..observations import Observations
from ..observations.levels import level_count
from ..operators.learned import is_learned
from ..runs.recipe import Recipe
from .noise_learner import NoiseLearner
from .parameter_learner import ParameterLearner
from .unknowns import Unknowns


def unknowns_of(obs: Observations, index: Tensor, recipe: Recipe) -> Unknowns:
    """Return the estimator for the unknowns of observations; `validate` rejects observations with both kinds."""
    if level_count(obs):
        return NoiseLearner(obs, index, recipe)
    return ParameterLearner(obs, index, recipe) if is_learned(obs[:1].A) else Unknowns(obs, index, recipe)
