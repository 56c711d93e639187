"""The unknown parameters of a run's operators: estimated at the start, and again from the draws of every lap."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..files.origin import Origin
from ..observations.lazy import as_lazy
from ..priors import GaussianPrior, OperatorParameters, Prior
from ..priors.parameter_scoring import score_parameters
from ..priors.parameters import with_parameters
from ..runs.draws import DrawStore
from .parameter_update import draw_scores, updated_parameters
from .start import gaussian_start
from .unknowns import Unknowns


class ParameterLearner(Unknowns):
    """Estimates the parameters of operators made with `Function(..., learn=...)`."""

    is_active = True

    def start(
        self, device: torch.device, progress: bool | None, state_file: Path | None = None, origin: Origin | None = None
    ) -> tuple[GaussianPrior, dict[str, Any]]:
        parameters = self._first(progress)
        known = as_lazy(with_parameters(self._train(), parameters))
        prior, notes = gaussian_start(self.recipe, known, device, progress, state_file, origin)
        prior.operator_parameters = parameters
        return prior, notes

    def _first(self, progress: bool | None) -> OperatorParameters:
        return score_parameters(self._train(), progress)[0]

    def complete(self, prior: Prior, device: torch.device, progress: bool | None) -> None:
        if prior.operator_parameters is None:
            prior.operator_parameters = self._first(progress)

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
        notes = [f"{parameters}, with a confidence of 95 %"]
        unknown = [name for name, _, _, known in parameters.entries() if not known]
        if unknown and lap == 0:
            notes.append(UNDETERMINED.format(names=", ".join(unknown)))
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


UNDETERMINED = (
    "the observations cannot tell {names}: other values explain them as well, with a prior that makes up for the "
    "difference. The first value is used. Observations whose operators differ in a known way would determine it, for "
    "example several widths in a known ratio, or some observations through a known operator"
)

UNSETTLED = (
    "the estimates of the operator's parameters were still changing after the last step: their first values may be too "
    "far from the truth. Start closer, or try several first values and compare the predictive measure of lap 0"
)
