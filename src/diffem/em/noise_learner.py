"""The unknown noise levels of a run: each lap's prior carries its own, and the next lap draws with them."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch

from ..files.origin import Origin
from ..observations.levels import level_count
from ..priors import GaussianPrior, Prior
from ..runs.draws import DrawStore
from .noise_start import noise_start
from .noise_update import combined, noise_shares, updated_levels
from .unknowns import Unknowns


class NoiseLearner(Unknowns):
    """Estimates the noise levels of observations made with `sigma="learn"`."""

    is_active = True

    def start(
        self, device: torch.device, progress: bool | None, state_file: Path | None = None, origin: Origin | None = None
    ) -> tuple[GaussianPrior, dict[str, Any]]:
        return noise_start(self.recipe, self._train(), device, progress, state_file, origin)

    def complete(self, prior: Prior, device: torch.device, progress: bool | None) -> None:
        if prior.noise is None:
            prior.noise = self.start(device, progress)[0].noise

    def update(self, prior: Prior, before: Prior, start: Prior, draws: DrawStore) -> None:
        assert before.noise is not None
        train = self._train()
        if isinstance(start, GaussianPrior):
            shares = noise_shares(start, train, self.recipe.seed)
        else:  # every value counts the same, as in plain expectation–maximisation
            shares = torch.ones(level_count(train), *train[:1].y.shape[1:], dtype=torch.float64)
        denoised_at = None if isinstance(before, GaussianPrior) else before.sigma_min
        prior.noise = combined(start.noise, updated_levels(before.noise, train, draws, shares, denoised_at))

    def metrics(self, prior: Prior, lap: int) -> dict[str, Any]:
        """The levels, their 95 % intervals, their geometric mean, and notes in words."""
        if prior.noise is None:
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


UNDETERMINED = (
    "the observations cannot tell the noise level: every smaller level explains them as well, with the rest of the "
    "variation as detail of x. The level used is the largest that they allow. Repeated measurements, values known to "
    "be constant, or operators whose rows overlap would determine it; otherwise measure the noise without signal and "
    "give sigma"
)
