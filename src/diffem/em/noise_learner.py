"""The unknown noise levels of a run: each lap's prior carries its own, and the next lap draws with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..files.origin import Origin
from ..observations import Observations
from ..observations.lazy import stored
from ..observations.levels import level_count
from ..priors import GaussianPrior, Prior
from ..priors.levels import NoiseLevels, with_known_noise
from ..runs.draws import DrawStore
from ..runs.recipe import Recipe
from .noise_start import noise_start
from .noise_update import combined, noise_shares, updated_levels


class NoiseLearner:
    """Estimates the noise levels of observations made with `sigma="learn"`; does nothing for others.

    Args:
        obs: All observations of the run.
        index: `(n,)`. The ones to train on.
        recipe: The recipe of the run.
    """

    def __init__(self, obs: Observations, index: Tensor, recipe: Recipe) -> None:
        self.obs, self.index, self.recipe = obs, index, recipe
        self.is_active = level_count(obs) > 0

    def known(self, prior: Prior) -> Observations:
        """The observations with the noise levels of a prior of this run."""
        return with_known_noise(self.obs, prior.noise) if self.is_active else self.obs

    def start(
        self, device: torch.device, progress: bool | None, state_file: Path | None = None, origin: Origin | None = None
    ) -> tuple[GaussianPrior, dict[str, Any]]:
        """The Gaussian start with its noise levels, and the measures of the fit."""
        return noise_start(self.recipe, self._train(), device, progress, state_file, origin)

    def update(self, before: Prior, start: Prior, draws: DrawStore) -> NoiseLevels | None:
        """The noise levels after the draws of a lap; None if the noise is known.

        Args:
            before: The prior that the draws were made with.
            start: The start of the run.
            draws: The posterior draws of the training observations.
        """
        if not self.is_active:
            return None
        assert before.noise is not None
        train = self._train()
        if isinstance(start, GaussianPrior):
            shares = noise_shares(start, train, self.recipe.seed)
        else:  # every value counts the same, as in plain expectation–maximisation
            shares = torch.ones(level_count(train), *train[:1].y.shape[1:], dtype=torch.float64)
        denoised_at = None if isinstance(before, GaussianPrior) else before.sigma_min
        return combined(start.noise, updated_levels(before.noise, train, draws, shares, denoised_at))

    def metrics(self, prior: Prior, lap: int) -> dict[str, Any]:
        """The measures of a lap: the levels, their 95 % intervals, their geometric mean, and notes in words."""
        if not self.is_active or prior.noise is None:
            return {}
        levels = prior.noise
        low, high = levels.interval()
        mean = math.exp(sum(map(math.log, levels.sigma)) / len(levels.sigma))
        name = "the noise level is" if len(levels.sigma) == 1 else "the noise levels are"
        notes = [f"{name} {levels}, with a confidence of 95 %"]
        if not levels.is_determined and lap == 0:
            notes.append(UNDETERMINED)
        lists = {"noise_levels": list(levels.sigma), "noise_low": list(low), "noise_high": list(high)}
        return {"noise_sigma": mean, **lists, "noise_determined": levels.is_determined, "notes": notes}

    def _train(self) -> Observations:
        return stored(self.obs)[self.index]


UNDETERMINED = (
    "the observations cannot tell the noise level: every smaller level explains them as well, with the rest of the "
    "variation as detail of x. The level used is the largest that they allow. Repeated measurements, values known to "
    "be constant, or operators whose rows overlap would determine it; otherwise measure the noise without signal and "
    "give sigma"
)
