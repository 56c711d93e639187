"""Lap 0: the Gaussian start is fitted, or the given prior is loaded, and saved as the prior of lap 0."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..observations import Observations
from ..priors import Prior
from ..priors.files import save_prior
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from .context import RunContext
from .start import Fitting, load_start, set_noise_range


def start_file(context: RunContext) -> Path:
    """Return the checkpoint of an unfinished Gaussian start."""
    return context.run.file(0, "start.safetensors")


def require_start(run: RunDir, recipe: Recipe, obs: Observations, start: Prior | None) -> None:
    """Raise an `InputError` if a given start cannot be used, before the folder is written.

    Once lap 0 is finished, the start is in the folder, and the prior that was given is not needed any more.
    """
    if (start is None and recipe.start == "gaussian") or run.laps_done() >= 0:
        return
    prior = start if start is not None else load_start(recipe.start)[0]
    if prior.event_shape != obs.x_shape:
        raise InputError(
            f"the prior to start from must have samples of shape {obs.x_shape}, that of the observed x, "
            f"got {prior.event_shape}"
        )


def make_start(context: RunContext, start: Prior | None, metrics: dict[str, Any]) -> Prior:
    """Make and save the prior of lap 0.

    Args:
        context: The run.
        start: A prior passed from Python; None uses the recipe's `start`.
        metrics: The metrics of lap 0, which are added to.

    Returns:
        The prior as it was saved, on the device.
    """
    began, recipe = time.monotonic(), context.recipe
    given = start is not None or recipe.start != "gaussian"
    context.on_event("starting", {"start": "given" if given else "gaussian"})
    if given:
        prior, cost = load_start(recipe.start if start is None else start)
        context.laps_before = cost.laps
        context.unknowns.complete(prior, Fitting(context.device, context.progress))
        context.use_estimates(prior)
        set_noise_range(prior, recipe)
        metrics |= {"start": "given", **cost.before()}
    else:
        saved = start_file(context), context.run.origin("start", 0)
        prior, reached = context.unknowns.start(Fitting(context.device, context.progress, *saved))
        context.use_estimates(prior)
        metrics |= reached
    save_prior(prior, context.run.prior_file(0), context.run.origin("prior", 0), lap=context.laps_before)
    metrics["start_seconds"] = time.monotonic() - began
    context.on_event("started", metrics)
    # read back as a resumed run reads it: rounding depends on the layout of tensors in memory
    return context.saved_prior(0, context.device)
