"""The end of a lap: the held-out evaluation, the warnings, and the files that complete the lap."""

from __future__ import annotations

import shutil
import time
from functools import partial
from typing import Any

from torch import Tensor

from ..priors import DiffusionPrior, Prior
from ..runs.lap_arrays import read_losses, write_lap_arrays
from .context import RunContext
from .denoising import denoising_measures
from .diagnosis import notes, warnings
from .lap_evaluation import evaluate_lap, restore_pictures
from .model_check import check_model
from .split import PICTURED
from .totals import totals


def conclude(
    context: RunContext, lap: int, prior: Prior, metrics: dict[str, Any], began: float, unseen: Tensor | None
) -> None:
    """Evaluate the prior of a lap and write the files that complete the lap.

    Args:
        metrics: The metrics of the E-step and M-step, which are added to.
        began: The time at which the lap began.
        unseen: Draws for held-out observations, `(n, *event)`; see `e_step.unseen_draws`.
    """
    trained, recipe = time.monotonic(), context.recipe
    learned = context.unknowns.metrics(prior, lap)
    metrics |= {**learned, "notes": [*metrics.get("notes", []), *learned.get("notes", [])]}
    _evaluate(context, lap, prior, metrics, unseen)
    model_warnings = [] if lap else _check_model(context, prior, metrics)
    metrics["warnings"] = model_warnings or warnings([*context.run.metrics(), metrics], recipe)
    metrics["notes"] = [*metrics.get("notes", []), *notes(metrics, recipe)]
    now = time.monotonic()
    metrics |= {"watch_seconds": now - trained, "seconds": now - began}
    cost = totals([*(context.run.lap_metrics(k) for k in range(lap)), metrics], recipe)
    metrics |= {"minutes": cost.minutes, "images": cost.images}
    context.run.finish_lap(lap, metrics)
    context.run.file(lap, "elapsed.json").unlink(missing_ok=True)
    _remove_draws(context)
    context.on_event("lap", metrics)


def _evaluate(context: RunContext, lap: int, prior: Prior, metrics: dict[str, Any], unseen: Tensor | None) -> None:
    """Run the held-out evaluation and write the samples and draws that the report shows."""
    obs, recipe = context.obs, context.recipe
    within_memory = partial(context.batches.within_memory, prior, lap, last=lap == recipe.last_lap)
    evaluation = within_memory(lambda batch: evaluate_lap(prior, obs.held_out, obs.preview, recipe.at(lap + 1), batch))
    metrics |= evaluation.metrics
    if isinstance(prior, DiffusionPrior) and lap:
        losses, noise = read_losses(context.run, [lap])[1], recipe.at(lap).train.noise
        measure = partial(denoising_measures, prior, context.store(lap), unseen, noise, losses)
        metrics |= within_memory(measure)
    arrays = {"samples.npy": evaluation.samples, "posterior.npy": evaluation.posterior}
    metrics["files"] = write_lap_arrays(context.run, lap, {name: x.cpu().numpy() for name, x in arrays.items()})


def _check_model(context: RunContext, prior: Prior, metrics: dict[str, Any]) -> list[str]:
    """Test the stated model y = Ax + e with the prior of lap 0; return warnings and add metrics and notes."""
    obs = context.obs
    checked = check_model(prior, obs.train, obs.held_out, context.recipe, context.device)
    metrics |= checked.metrics
    metrics["notes"] = [*metrics.get("notes", []), *checked.notes]
    return checked.warnings


def _remove_draws(context: RunContext) -> None:
    """Remove the draws of laps that are older than `e_step.keep`."""
    keep, run = context.recipe.e_step.keep, context.run
    if keep is not None:
        newest = max(k for k in range(context.recipe.last_lap + 1) if run.done(k))
        for old in range(1, newest - keep + 1):
            shutil.rmtree(run.lap(old) / "draws", ignore_errors=True)


def restore_all_pictures(context: RunContext) -> None:
    """Recompute the samples and draws of finished laps that are missing or damaged."""
    pictured = context.obs.preview[: min(PICTURED, len(context.obs.preview))]

    def load(lap: int) -> tuple[Prior, int]:
        prior = context.saved_prior(lap, context.device)
        return prior, context.batches.prepare(prior)

    for lap in (k for k in range(context.recipe.last_lap + 1) if context.run.done(k)):
        restore_pictures(context.run, lap, context.recipe, partial(load, lap), pictured)
