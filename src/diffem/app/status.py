"""The progress of a run, read from its files only, because the run may be executing in another process."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.counting import count_of
from ..core.errors import InputError
from ..em.verdict import Verdict, verdict
from ..files.tensors import read_header
from ..runs.lap_arrays import read_losses
from ..runs.rundir import RunDir
from .viewer import Viewer


@dataclass
class Progress:
    """The progress of a run.

    Attributes:
        status: `running`, `finished`, …
        last: The last finished lap, −1 if there is none.
        laps: Number of laps in the recipe.
        stage: Description of the lap in progress; empty if the run is finished.
        quiet: Seconds since a file was written.
        metrics: The metrics of the finished laps.
        warnings: Pairs of lap and text.
        verdict: Comparison of the laps; None if no lap is finished.
    """

    status: str
    last: int
    laps: int
    stage: str
    quiet: float
    metrics: list[dict[str, Any]]
    warnings: list[tuple[int, str]]
    verdict: Verdict | None


def progress(viewer: Viewer) -> Progress:
    """Read the progress of a run from its files."""
    run = viewer.run
    info, metrics = run.info(), run.metrics()
    last = len(metrics) - 1
    recipe = run.recipe()  # read again: the number of laps may have been raised since the page was opened
    newest = max((f.stat().st_mtime for f in _files(run, last + 1)), default=time.time())
    found = [(m["lap"], text) for m in metrics for text in m.get("warnings", [])]
    stage = "" if last >= recipe.last_lap else _stage(viewer, last + 1)
    quiet = max(0.0, time.time() - newest)
    best = verdict(metrics) if metrics and info.get("status") != "exported" else None
    return Progress(info.get("status", "?"), last, recipe.last_lap, stage, quiet, metrics, found, best)


def _files(run: RunDir, lap: int) -> list[Path]:
    folders = [run.path, run.lap(lap), run.lap(lap) / "draws", run.lap(max(lap - 1, 0))]
    return [f for folder in folders if folder.is_dir() for f in folder.iterdir() if f.is_file() and f.name != ".lock"]


def _stage(viewer: Viewer, lap: int) -> str:
    """Describe the lap in progress, judged by the files it has written so far."""
    run, recipe = viewer.run, viewer.recipe
    if lap == 0:
        return (
            "lap 0: fitting the Gaussian start" if recipe.start == "gaussian" else "lap 0: reading the starting prior"
        )
    if run.prior_file(lap).is_file():
        return f"lap {lap}: held-out evaluation"
    written = len(list((run.lap(lap) / "draws").glob("*.json"))) if (run.lap(lap) / "draws").is_dir() else 0
    shards = None
    if viewer.problem is not None:
        shards = -(-(len(viewer.problem.obs) - recipe.watch.held_out) // recipe.e_step.shard)
    state = run.lap(lap) / "training.safetensors"
    if state.is_file() or written == shards:
        done = _training_steps(state) if state.is_file() else None
        first = lap == 1 and recipe.start == "gaussian"
        train = recipe.at(lap).train
        steps = train.steps_in(first)
        return f"lap {lap}: training the denoiser" + (
            f", {done} of {count_of(steps, 'step')} at the last checkpoint" if done else ""
        )
    return f"lap {lap}: posterior draws, {written} {f'of {shards} ' if shards else ''}shards written"


def _training_steps(path: Path) -> int | None:
    try:
        done = read_header(path)[1].get("done")
    except InputError:  # the file was replaced or removed while it was read
        return None
    return done if isinstance(done, int) else None


def losses(viewer: Viewer) -> tuple[list[float], list[float]]:
    """The training loss of all finished laps: optimizer steps, counted over all laps, and losses."""
    return read_losses(viewer.run, range(1, viewer.last + 1))
