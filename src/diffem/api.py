"""`diffem.fit`: observations in, a run with its report out. The command line calls it too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from .core.errors import InputError
from .core.interruption import Interruption, Preempted
from .core.modes import in_own_modes
from .core.processes import ALONE, Processes
from .em.given import require_linear, suspicions
from .em.loop import Say
from .em.run import Run, run_recipe
from .em.table import LapTable, warn
from .observations import Observations, Problem
from .operators import Operator
from .priors import Prior
from .report.loggers import Logging, require_loggers
from .report.page import write_report
from .runs.changes import placed
from .runs.python_source import python_problem, recipe_folder
from .runs.recipe import Recipe, load_recipe


@in_own_modes
def fit(
    obs: Any = None,
    recipe: str | Path | dict[str, Any] | Recipe = "digits",
    out: str | os.PathLike[str] | None = "runs/mine",
    seed: int | None = None,
    *,
    A: Operator | None = None,
    sigma: Any = None,
    start: Prior | None = None,
    changes: dict[str, Any] | None = None,
    device: torch.device | str | None = None,
    progress: bool | None = None,
    report: bool = True,
    loggers: Sequence[str] = (),
    say: Say | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
    minutes: float | None = None,
) -> Run:
    """Learn a prior from observations; calling again with the same arguments resumes, or returns at once if all is done.

    What is probably wrong is a `RunWarning` (Python's `warnings`), at the end of the lap that shows it; at the end of the run there is one
    if the last lap is worse than an earlier one. Ctrl-C and SIGTERM save the run before they take their usual effect.

    Args:
        obs: The observations; or y alone, with `A` and `sigma`, as `Observations` takes them (arrays, frames, lists, data sets; NaN where
            nothing was measured); None takes those of the recipe's own data source.
        recipe: A built-in name (`diffem recipes`), a YAML file, or a mapping.
        out: The run's folder; None for `runs/` and the recipe's name.
        seed: Overrides the recipe's.
        A: The operator, if obs is y alone.
        sigma: The standard deviation of the noise, if obs is y alone.
        start: A prior to start from instead of the Gaussian fit.
        changes: Sets keys of the recipe, like `{"train.lr": 1e-4}`.
        device: Where to compute; a GPU if there is one.
        progress: None prints a row per lap and the verdict to standard output, also into files, pipes and captured output, and shows
            progress bars on a terminal and in notebooks. True shows the bars everywhere. False prints nothing; warnings stay.
        report: Write `report.html` into the folder at the end.
        loggers: `"tensorboard"`, `"wandb"`: write measures, losses and pictures of every lap there as it ends.
        say: Called with the name and the data of every event.
        processes: This process among several (`diffem.core.processes.join()`), which all see the same folder.
        interruption: Asks the run to stop where it can be resumed, which then raises `Preempted`; the caller listens to signals.
        minutes: Stop after this time, counted from this call, by raising `Preempted`; the same call resumes. No lap begins that would
            end later, judging by the lap before, and a lap that takes longer is saved and stopped. A training that has ended is still
            measured. The first lap of a call and the final prior (`final:`) begin in any case.
    """
    table = LapTable() if progress is not False and processes.is_first else None
    named = _required(loggers)
    with _heeding(interruption, table) as heeded:
        if minutes is not None:
            heeded.stop_after(minutes)
        obs = _observations(obs, A, sigma)
        changes = dict(changes or {}) | ({} if seed is None else {"seed": seed})
        if obs is not None:
            changes["data"] = {"source": "given"}
        with processes.announcing():
            resolved = load_recipe(recipe, changes)
            if table is not None and obs is None and resolved.data.source != "given":
                table("reading", {"recipe": resolved.name, "source": resolved.data.source})
            problem = _problem(obs, resolved, recipe, changes)
        if table is not None:
            table("data", {"about": problem.about})
        with processes.announcing():
            require_linear(problem.obs)
        if processes.is_first:
            for text in suspicions(problem.obs, images=resolved.network.kind == "unet"):
                warn(text)
        folder = Path("runs") / resolved.name if out is None else Path(out)
        with _logging(folder, named if processes.is_first else []) as log:
            run = run_recipe(
                placed(resolved, folder),
                problem.obs,
                folder,
                start=start,
                device=device,
                progress=progress,
                say=_told(table, say, log),
                processes=processes,
                interruption=heeded,
            )
            log()  # of a run that was finished before
        if processes.is_first:
            _conclude(run, problem, table, report, processes.device() if device is None else device)
    return run


def _observations(obs: Any, A: Operator | None, sigma: Any) -> Observations | None:
    """The observations that were given, made of their parts if need be."""
    if obs is None or isinstance(obs, Observations):
        if A is not None or sigma is not None:
            what = "the recipe's data source" if obs is None else "obs"
            raise InputError(f"A and sigma go with y alone: {what} has its own")
        return obs
    if isinstance(obs, str | os.PathLike):
        raise InputError(
            f"obs must be observations, got {str(obs)!r}; read a file with Observations.load, or name the recipe: fit(recipe=...)"
        )
    if sigma is None:
        raise InputError("fit(y, ...) needs the standard deviation of the noise: sigma=...")
    return Observations(obs, A, sigma)


def _problem(obs: Observations | None, resolved: Recipe, recipe: object, changes: dict[str, Any]) -> Problem:
    """What the run learns from; errors of the recipe's own source name the recipe."""
    if obs is not None:
        return Problem(obs)
    data = resolved.data
    try:
        if ":" in data.source:
            folder = recipe_folder(data.source, recipe, changes)
            return python_problem(data.source, resolved.seed, data.options("source"), folder)
        return resolved.problem()
    except InputError as error:
        raise InputError(f"{recipe if isinstance(recipe, str | Path) else resolved.name}: {error}") from None


def _required(loggers: Sequence[str]) -> list[str]:
    """The loggers, if they are installed: asked before anything else is done."""
    if not loggers:
        return []
    return require_loggers(loggers)


@contextmanager
def _logging(folder: Path, names: list[str]) -> Iterator[Callable[[], None]]:
    """A function that writes the finished laps of a run to its loggers."""
    if not names:
        yield lambda: None
        return
    log = Logging(folder, names)
    try:
        yield log.write
    finally:
        log.close()


def _told(table: LapTable | None, say: Say | None, log: Callable[[], None]) -> Say:
    """Events go to the table, warnings of a lap to `warnings`, both to the caller's function, and finished laps to the loggers."""

    def tell(event: str, data: dict[str, Any]) -> None:
        if say is not None:
            say(event, data)
        if table is not None:
            table(event, data)
        if event == "lap":
            for text in data.get("warnings", []):
                warn(f"lap {data['lap']}: {text}")
            log()

    return tell


def _shows_all_laps(page: Path) -> bool:
    """Whether a report was written after the last lap was finished."""
    laps = [file.stat().st_mtime_ns for file in page.parent.glob("laps/*/metrics.json")]
    return page.is_file() and page.stat().st_mtime_ns >= max(laps, default=0)


def _conclude(run: Run, problem: Problem, table: LapTable | None, report: bool, device: torch.device | str) -> None:
    """The report, and the verdict."""
    page = None
    if report:
        page = run.path / "report.html"
        if not _shows_all_laps(page):
            page = write_report(run.path, problem.obs, problem.reference, device, problem.range)
    found = run.verdict
    if table is not None:
        table.end(found, run.path, page)
    if found.worse:
        warn(found.text)


@contextmanager
def _heeding(interruption: Interruption | None, table: LapTable | None) -> Iterator[Interruption]:
    """Ctrl-C and SIGTERM stop the run where it can be resumed, and then take the effect they have without it.

    A caller that passes an `Interruption` listens to signals itself.
    """
    if interruption is not None:
        yield interruption
        return
    own = Interruption()
    usual = (signal.SIGINT, signal.SIGTERM)
    heard = [number for number in usual if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    try:
        with own.listening(signals=heard):
            yield own
    except Preempted as where:
        where.reason = own.reason
        if table is not None:
            table.line(f"stopped {where.reason} ({where}); the same call resumes")
        if own.signal is None:
            raise
        signal.raise_signal(own.signal)
        raise  # a handler of the caller's took the signal, and the run is not finished
    if own.signal is not None:
        signal.raise_signal(own.signal)  # the caller's handlers are back in place
