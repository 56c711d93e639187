"""A run's folder and its priors, loading a prior, and carrying out a recipe."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InputError
from ..core.interruption import Interruption
from ..core.processes import ALONE, Processes
from ..files.tensors import tensors_checksum
from ..observations import Observations
from ..observations.precision import cast_note, in_float32
from ..priors import DiffusionPrior, Prior
from ..priors.files import load_prior, pack
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..runs.steps import resolve_steps
from .context import RunContext, Say
from .exports import is_export, kept_recipe, read_card
from .exports import load as load_export
from .loop import Loop
from .table import warn
from .validation import validate
from .verdict import Lap, Verdict, choose_lap, verdict


@dataclass
class Run:
    """A run's folder, and its priors."""

    path: Path

    @property
    def laps(self) -> list[dict[str, Any]]:
        """What every finished lap measured, the start first."""
        return RunDir(self.path).metrics()

    @property
    def prior(self) -> Prior:
        """The prior of the last finished lap. `run.load("best")` is that of the best one, which `run.verdict` names."""
        return self.load()

    def load(self, lap: Lap = None, device: torch.device | str = "cpu", precision: str = "float32") -> Prior:
        """The prior of a lap: a number, `"best"`, or None for the last; see `diffem.load`."""
        return load(self.path, lap, device, precision)

    @property
    def verdict(self) -> Verdict:
        """Which lap is the best by held-out prediction, in numbers (`.best`, `.last`, `.worse`) and in a sentence (`.text`)."""
        return verdict(self.laps)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, laps={RunDir(self.path).laps_done()})"


def load(
    path: str | os.PathLike[str],
    lap: Lap = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
) -> Prior:
    """The prior of a run, of an export, or of a prior's own file; nothing in them is executed.

    Args:
        path: A run's folder, the folder of an exported prior (`diffem export`), or the file of one prior.
        lap: The number of a lap, `"best"` for the best one by held-out prediction, None for the last. A `RunWarning` names the
            best lap if none is given and the last is worse.
        device: Where the prior computes.
        precision: What its network computes in: 'float32', 'tf32', 'bf16' or 'fp16'; 'recipe' is what the run drew in, on a GPU.
    """
    path, recipe = Path(path), None
    if path.is_file():
        if lap is not None:
            raise InputError(f"{path} is the file of one prior: it has no lap {lap} to choose")
        prior = load_prior(path, device)
    elif is_export(path):
        if lap is not None:
            raise InputError(f"{path} is an exported prior: it has no lap {lap} to choose")
        prior, recipe = load_export(path, device), kept_recipe(read_card(path))
    else:
        run = RunDir(path)
        recipe, chosen = run.recipe(), choose_lap(run, lap)
        if lap is None and (found := verdict(run.metrics())).worse:
            warn(f"{path}: {found.text}")
        prior = load_prior(run.prior_file(chosen), device, run.origin("prior", chosen))
    if precision == "recipe":
        precision = recipe.drawing_precision if recipe is not None and prior.mean.is_cuda else "float32"
    return prior.compute_in(precision) if isinstance(prior, DiffusionPrior) else prior


def carry_out(
    recipe: Recipe,
    obs: Observations,
    out: str | os.PathLike[str],
    *,
    start: Prior | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    say: Say | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
) -> Run:
    """`fit` with the recipe resolved and the observations made."""
    device = torch.device(device) if device is not None else processes.device()
    with processes.announcing():
        recipe = resolve_steps(recipe, len(obs))
        used = in_float32(obs)  # the run is known by the observations as they were given
        validate(recipe, used, start)
        run = RunDir(out)
        given = None if start is None else tensors_checksum(pack(start)[0], {})[:32]
        processes.first(lambda: run.open(recipe, obs, given) and None)
        try:
            note = cast_note(obs)
            context = RunContext(run, recipe, used, device, progress, say, processes, interruption)
            Loop(context, [note] if note else []).run_all(start)
        finally:
            run.unlock()
    return Run(run.path)
