"""What users call: learn a prior, and load one that was learned."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..data import Observations
from ..errors import InputError
from ..interruption import Interruption
from ..modes import in_own_modes
from ..priors import DiffusionPrior, Prior
from ..priors.files import load_prior, pack
from ..processes import ALONE, Processes
from ..runs.recipe import Recipe, load_recipe
from ..runs.rundir import RunDir
from ..runs.tensors import tensors_checksum
from .loop import Loop, Say
from .validation import validate


@dataclass
class Run:
    """A run's folder, and its prior."""

    path: Path

    @property
    def laps(self) -> list[dict[str, Any]]:
        """What every finished lap measured, the start first."""
        return RunDir(self.path).metrics()

    @property
    def prior(self) -> Prior:
        """The prior of the last finished lap."""
        return load(self.path)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, laps={RunDir(self.path).laps_done()})"


def load(
    path: str | os.PathLike[str],
    lap: int | None = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
) -> Prior:
    """The prior of a run, its last lap's or that of lap k; also reads a prior's own file.

    precision: what its network computes in, 'float32', 'tf32', 'bf16' or 'fp16'; 'recipe' is what the run drew in, on a GPU.
    """
    path, recipe = Path(path), None
    if path.is_file():
        if lap is not None:
            raise InputError(f"{path} is the file of one prior: it has no lap {lap} to choose")
        prior = load_prior(path, device)
    else:
        run = RunDir(path)
        recipe, lap = run.recipe(), run.finished_lap(lap)
        prior = load_prior(run.prior_file(lap), device, run.origin("prior", lap))
    if precision == "recipe":
        precision = recipe.drawing_precision if recipe is not None and prior.mean.is_cuda else "float32"
    return prior.compute_in(precision) if isinstance(prior, DiffusionPrior) else prior


@in_own_modes
def fit(
    obs: Observations | None = None,
    recipe: str | Path | dict[str, Any] | Recipe = "digits",
    out: str | os.PathLike[str] = "runs/mine",
    seed: int | None = None,
    *,
    start: Prior | None = None,
    changes: dict[str, Any] | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    say: Say | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
) -> Run:
    """Learn a prior from observations; calling again with the same arguments resumes, or returns at once if all is done.

    obs: the observations; None takes those of the recipe's own data source.
    recipe: a built-in name (`diffem recipes`), a YAML file, or a mapping; `changes` sets keys like `{"train.lr": 1e-4}`.
    out: the run's folder. seed: overrides the recipe's. start: a prior to start from instead of the Gaussian fit.
    processes: this one among several (`diffem.processes.join()`), which all see the same folder. interruption: asks the run to stop
        where it can be resumed; it then raises `Preempted`.
    """
    changes = dict(changes or {}) | ({} if seed is None else {"seed": seed})
    if obs is not None:
        changes["data"] = {"source": "given"}
    resolved = load_recipe(recipe, changes)
    if obs is None:
        with processes.announcing():
            obs = resolved.problem().obs
    return carry_out(
        resolved,
        obs,
        out,
        start=start,
        device=device,
        progress=progress,
        say=say,
        processes=processes,
        interruption=interruption,
    )


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
        validate(recipe, obs, start)
        run = RunDir(out)
        given = None if start is None else tensors_checksum(pack(start)[0], {})[:32]
        processes.first(lambda: run.open(recipe, obs, given) and None)
        try:
            Loop(run, recipe, obs, device, progress, say, processes, interruption).run_all(start)
        finally:
            run.unlock()
    return Run(run.path)
