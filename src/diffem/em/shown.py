"""The samples and posterior draws that a finished lap keeps for the report, made again if they are missing or damaged."""

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
    """Make `samples.npy` and `posterior.npy` of a finished lap again where they are missing or damaged.

    Args:
        run: The run.
        lap: A finished lap of it.
        recipe: The run's recipe.
        load: Returns the lap's prior and its batch size (None: chosen for the device); called only if something is made.
        shown: The observations in the pictures, `watch.in_pictures`; None if they are not at hand.
    """

    recipe = recipe.at(lap + 1)  # as the watch of that lap drew

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
