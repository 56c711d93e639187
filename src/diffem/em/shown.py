"""Recomputation of the samples and posterior draws that the report shows, if they are missing or damaged."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..core.errors import InputError
from ..observations import Observations
from ..priors import Prior
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..runs.shown import restore_shown
from .watch import posterior_draws, prior_samples


def restore_pictures(
    run: RunDir, lap: int, recipe: Recipe, load: Callable[[], tuple[Prior, int | None]], shown: Observations | None
) -> None:
    """Recompute `samples.npy` and `posterior.npy` of a finished lap if they are missing or damaged.

    Args:
        run: The run.
        lap: A finished lap.
        recipe: The recipe of the run.
        load: Returns the lap's prior and the batch size (None: chosen for the device); called only if it is needed.
        shown: The observations in the pictures, `watch.in_pictures`; None if they are not available.
    """

    recipe = recipe.at(lap + 1)  # the held-out evaluation of a lap uses the options of the next lap

    def samples() -> np.ndarray:
        prior, batch = load()
        return prior_samples(prior, recipe, batch).cpu().numpy()

    def draws() -> np.ndarray:
        if shown is None:
            file = run.file(lap, "posterior.npy")
            raise InputError(
                f"{file} is missing or damaged; diffem.fit on this folder, with the observations, makes it again"
            )
        prior, batch = load()
        return posterior_draws(prior, shown.to(prior.mean.device, prior.mean.dtype), recipe, batch).cpu().numpy()

    restore_shown(run, lap, {"samples.npy": samples, "posterior.npy": draws})
