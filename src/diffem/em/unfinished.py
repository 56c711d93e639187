"""A final training in pieces: its averaged weights are exported, and another run continues it.

    diffem export RUN -o DIR --unfinished     weights, and in the card the number of steps that are done
    final: {start: DIR}                       the training continues after these steps

A finished final prior can be trained longer in the same way, if `final.train.steps` is larger than before.

The next piece repeats the draws and continues the learning-rate schedule and the random numbers at that step. Its
optimizer is new, and its weights are the averaged ones, so it does not reproduce an uninterrupted training bit by bit.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor

from ..core.errors import InputError
from ..priors import DiffusionPrior
from ..priors.files import load_prior
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from .checkpoint import read_checkpoint
from .exports import ExportOptions, describe_run, export, read_card
from .exports import load as load_export
from .start import denoiser_to_train, is_conditional
from .totals import read_elapsed, totals
from .training_blocks import TrainingRecord

CHECKPOINT = "training.safetensors"  # the state of an interrupted training, in the folder of its lap


@dataclass(frozen=True)
class Piece:
    """The part of a final training that is done.

    Attributes:
        folder: The export with its weights.
        steps: Optimizer steps.
        seconds: Time of these steps.
        lap_seconds: Time of the lap so far, including the draws.
    """

    folder: str
    steps: int
    seconds: float
    lap_seconds: float

    def record(self) -> TrainingRecord:
        """Return the record of these steps; their losses are not exported."""
        return TrainingRecord(self.steps, self.seconds, first_step=self.steps)


def earlier_piece(recipe: Recipe, lap: int) -> Piece | None:
    """Return the piece that the training of a lap continues; None if it begins at step 0.

    Raises:
        InputError: If `final.start` is not an export of a final prior, or has no steps left to do.
    """
    folder = None if recipe.final is None or lap != recipe.last_lap else recipe.final.start
    if folder is None:
        return None
    training = read_card(folder).get("training")
    progress = training.get("unfinished", training.get("final")) if isinstance(training, dict) else None
    if not isinstance(progress, dict):
        raise InputError(
            f"final.start: {folder} is not the export of a final prior, finished or not (diffem export --unfinished); "
            "to start from the prior of a lap, use the key start"
        )
    steps, seconds, lap_seconds = (progress.get(name, -1) for name in ("steps", "seconds", "lap_seconds"))
    if not (isinstance(steps, int) and _is_time(seconds) and _is_time(lap_seconds)):
        got = repr(progress)[:200]
        raise InputError(
            f"final.start: {folder} must contain the steps and seconds of its training as numbers, got {got}"
        )
    total = recipe.at(lap).train.steps_in(False)
    if not 0 <= steps < total:
        raise InputError(
            f"final.start: the training in {folder} must have done fewer steps than the {total} of this recipe "
            f"(final.train.steps), got {steps}"
        )
    return Piece(folder, steps, float(seconds), float(lap_seconds))


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value < math.inf


def trainer_state(piece: Piece, prior: DiffusionPrior) -> dict[str, Tensor]:
    """Return the weights of a piece as the state of a trainer without optimizer moments.

    Args:
        prior: The prior to train, whose network must have weights of the same shapes.
    """
    exported = load_export(piece.folder, prior.mean.device)
    old = list(exported.network.parameters()) if isinstance(exported, DiffusionPrior) else []
    new = list(prior.network.parameters())
    if [p.shape for p in old] != [p.shape for p in new]:
        raise InputError(
            f"final.start: the network in {piece.folder} has weights of other shapes than the network of this recipe"
        )
    return {f"{name}.{k}": p.detach() for k, p in enumerate(old) for name in ("weight", "average")}


def export_unfinished(
    run: str | os.PathLike[str], folder: str | os.PathLike[str], **options: Unpack[ExportOptions]
) -> Path:
    """Export the averaged weights of a final training that was interrupted; the arguments are those of `export_run`.

    Raises:
        InputError: If the run contains no interrupted training of its final prior.
    """
    directory = RunDir(run)
    recipe, lap = directory.recipe(), directory.finished_lap() + 1
    saved = None
    if recipe.final is not None and lap == recipe.last_lap:
        saved = read_checkpoint(directory.lap(lap) / CHECKPOINT, directory.origin("training", lap))
    if saved is None:
        raise InputError(
            f"{run} contains no interrupted training of a final prior; without --unfinished, the prior of the last "
            "finished lap is exported"
        )
    steps, state, record = saved
    seconds = {"seconds": record.seconds, "lap_seconds": read_elapsed(directory, lap) or record.seconds}
    laps = directory.metrics()
    cost = totals(laps, recipe)
    training: dict[str, Any] = describe_run(directory) | {
        "run_lap": lap,
        "minutes": cost.minutes + seconds["lap_seconds"] / 60,
        "images": cost.images + steps * recipe.at(lap).train.batch,
        "unfinished": {"steps": steps, **seconds},
    }
    prior = _with_average(directory, recipe, lap, state)
    return export(prior, folder, lap=cost.laps, training=training, **options)


def _with_average(run: RunDir, recipe: Recipe, lap: int, state: dict[str, Tensor]) -> DiffusionPrior:
    """Return the prior of an interrupted training, with its averaged weights, or the current ones without averaging."""
    before, start = (load_prior(run.prior_file(k), "cpu", run.origin("prior", k)) for k in (lap - 1, 0))
    family = before.family if isinstance(before, DiffusionPrior) and is_conditional(before, recipe, lap) else None
    prior = denoiser_to_train(before, start, recipe, family, recipe.network_from(lap))
    name = "average" if "average.0" in state else "weight"
    with torch.no_grad():
        for k, p in enumerate(prior.network.parameters()):
            p.copy_(state[f"{name}.{k}"])
    return prior.eval().requires_grad_(False)
