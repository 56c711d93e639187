"""A run and its priors: running a recipe, and loading a prior."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..core.devices import require_device
from ..core.errors import InputError, warn
from ..core.interruption import Interruption
from ..core.processes import ALONE, Processes
from ..files.tensors import tensors_checksum
from ..observations import Observations
from ..observations.precision import cast_note, in_float32
from ..priors import DiffusionPrior, Prior
from ..priors.files import load_prior, pack
from ..runs.changes import with_stored_paths
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..runs.steps import resolve_steps
from .context import EventListener, RunContext
from .exports import is_export, read_card, recipe_of_card
from .exports import load as load_export
from .lap_start import require_start
from .loop import Loop
from .validation import validate
from .verdict import Lap, Verdict, choose_lap, verdict


@dataclass
class Run:
    """A run folder and its priors. `diffem.fit` returns it; `Run(Path("runs/mine"))` opens a folder.

    Attributes:
        path: The run folder.
    """

    path: Path

    @property
    def laps(self) -> list[dict[str, Any]]:
        """The metrics of every finished lap, beginning with lap 0 (`runs/lap_metrics.py` explains the keys)."""
        return RunDir(self.path).metrics()

    @property
    def prior(self) -> Prior:
        """The prior of the last finished lap. `run.load("best")` loads that of the best lap (`run.verdict`)."""
        return self.load()

    def load(self, lap: Lap = None, device: torch.device | str = "cpu", precision: str = "float32") -> Prior:
        """Load the prior of a lap.

        Args:
            lap: A number, 0 being the Gaussian start; `"best"`; or None for the last lap.
            device: The device of the prior.
            precision: The precision of its network, as in `diffem.load`.
        """
        return load(self.path, lap, device, precision)

    @property
    def verdict(self) -> Verdict:
        """The best lap by held-out prediction, in numbers (`.best`, `.last`, `.worse`) and as a sentence (`.text`)."""
        return verdict(self.laps)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, laps={RunDir(self.path).laps_done()})"


def load(
    path: str | os.PathLike[str],
    lap: Lap = None,
    device: torch.device | str = "cpu",
    precision: str = "float32",
) -> Prior:
    """Load the prior of a run, of an export, or of a single file. Loading executes no code from these files.

    Example:
        ```python
        prior = diffem.load("runs/mine", lap="best", device="cuda", precision="bf16")
        x = prior.sample(64)  # (64, *event)
        ```

    Args:
        path: A run folder, the folder of an exported prior (`diffem export`), or the file of a prior.
        lap: The number of a lap, `"best"` for the best lap by held-out prediction, None for the last. Without a lap, a
            `RunWarning` names the best lap if the last one is worse.
        device: The device of the prior.
        precision: The precision of its network: 'float32', 'tf32', 'bf16' or 'fp16'. 'recipe' is the precision of the
            run's E-step on a GPU.

    Returns:
        The prior: a `GaussianPrior` for lap 0 of most runs, a `DiffusionPrior` for the other laps.

    Raises:
        InputError: If there is no such prior, lap or device, or a file is damaged.
    """
    path, recipe, device = Path(path), None, require_device(device)
    if path.is_file():
        if lap is not None:
            raise InputError(f"{path} is the file of one prior: it has no lap {lap} to choose")
        prior = load_prior(path, device)
    elif is_export(path):
        if lap is not None:
            raise InputError(f"{path} is an exported prior: it has no lap {lap} to choose")
        prior, recipe = load_export(path, device), recipe_of_card(read_card(path))
    else:
        run = RunDir(path)
        recipe, chosen = run.recipe(), choose_lap(run, lap)
        if lap is None and (found := verdict(run.metrics())).worse:
            warn(f"{path}: {found.text}")
        prior = load_prior(run.prior_file(chosen), device, run.origin("prior", chosen))
    if precision == "recipe":
        precision = recipe.drawing_precision if recipe is not None and prior.mean.is_cuda else "float32"
    return prior.compute_in(precision) if isinstance(prior, DiffusionPrior) else prior


def run_recipe(
    recipe: Recipe,
    obs: Observations,
    out: str | os.PathLike[str],
    *,
    start: Prior | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    on_event: EventListener | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
) -> Run:
    """Run a recipe on observations, or resume the run in `out`; `diffem.fit` describes the arguments.

    Raises:
        InputError: If the recipe does not fit the observations, or the folder contains another run.
    """
    device = require_device(device) if device is not None else processes.device()
    with processes.announcing():
        note, used = cast_note(obs), in_float32(obs)
        recipe, run = with_stored_paths(resolve_steps(recipe, len(obs)), Path(out)), RunDir(out)
        validate(recipe, used, start)
        require_start(run, recipe, used, start)
        fingerprint = None if start is None else tensors_checksum(pack(start)[0], {})[:32]
        # the observations as they were given identify the run; the first process locks the folder
        processes.run_on_first(partial(run.open, recipe, obs, fingerprint))
        try:
            context = RunContext(run, recipe, used, device, progress, on_event, processes, interruption)
            Loop(context, [note] if note else []).run_all(start)
        finally:
            run.unlock()
    return Run(run.path)
