"""What a run estimates of the measurement besides the prior: nothing, noise levels, or parameters of the operators."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files.origin import Origin
from ..observations import Observations
from ..observations.lazy import as_lazy
from ..priors import GaussianPrior, Prior
from ..priors.base import known_observations
from ..runs.draws import DrawStore
from ..runs.recipe import Recipe
from .start import gaussian_start


class Unknowns:
    """Nothing is unknown. Subclasses estimate something at the start of a run and after the draws of every lap.

    Each lap's prior carries the estimates of its lap, and the next lap draws with them.

    Args:
        obs: All observations of the run.
        index: `(n,)`. The ones to train on.
        recipe: The recipe of the run.
    """

    is_active = False

    def __init__(self, obs: Observations, index: Tensor, recipe: Recipe) -> None:
        self.obs, self.index, self.recipe = obs, index, recipe

    def known(self, prior: Prior) -> Observations:
        """The observations with the estimates that a prior of this run carries."""
        return known_observations(prior, self.obs)

    def start(
        self, device: torch.device, progress: bool | None, state_file: Path | None = None, origin: Origin | None = None
    ) -> tuple[GaussianPrior, dict[str, Any]]:
        """The Gaussian start, which carries the first estimates, and the measures of the fit."""
        return gaussian_start(self.recipe, self._train(), device, progress, state_file, origin)

    def complete(self, prior: Prior, device: torch.device, progress: bool | None) -> None:
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
        """The estimates as measures of a lap, with notes in words."""
        return {}

    def _train(self) -> Observations:
        return as_lazy(self.obs)[self.index]
