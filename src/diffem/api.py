"""`diffem.fit`: run a recipe on observations and write the report. The command line calls it too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from .core.errors import InputError, warn
from .core.interruption import Interruption, Preempted
from .core.modes import in_default_modes
from .core.processes import ALONE, Processes
from .em.context import EventListener
from .em.input_checks import (
    data_warnings,
    require_features,
    require_learnable,
    require_linear,
    require_range,
    require_signal,
)
from .em.lap_table import LapTable
from .em.run import Run, run_recipe
from .observations import Observations, Problem
from .operators import Operator
from .priors import Prior
from .report.loggers import RunLoggers, require_loggers
from .report.page import write_report
from .runs.python_source import python_problem, recipe_folder
from .runs.recipe import Recipe, load_recipe


@in_default_modes
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
    on_event: EventListener | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
    minutes: float | None = None,
) -> Run:
    """Learn a prior from observations. Calling it again with the same arguments resumes the run, or returns it.

    Probable mistakes lead to a `RunWarning` at the end of the lap that shows them, or after the last lap if an earlier
    one is better. Ctrl-C and SIGTERM save the run first.

    Example:
        ```python
        run = diffem.fit(y, recipe="small-images", out="runs/mine", sigma=0.1)  # y: (n, height, width), with NaN
        samples = run.load("best").sample(64)  # (64, height, width)
        ```

    Args:
        obs: The observations, or y alone in any form that `Observations` accepts. None uses the recipe's data source.
        recipe: The name of a built-in recipe (`diffem recipes`), the path of a YAML file, or a mapping.
        out: The run folder; None for `runs/` and the name of the recipe.
        seed: Replaces the seed of the recipe.
        A: The operator, if `obs` is y alone.
        sigma: The noise level, if `obs` is y alone.
        start: A prior to start from instead of the Gaussian start.
        changes: Replaces keys of the recipe, such as `{"train.lr": 1e-4}`.
        device: The device. Default: a GPU if there is one.
        progress: None prints a row per lap, and progress bars on a terminal. True: bars always. False: only warnings.
        report: Whether to write `report.html` into the run folder at the end.
        loggers: `"tensorboard"`, `"wandb"`: log metrics, losses and pictures of every lap.
        on_event: Called with the name and the data of every event.
        processes: This process among several (`diffem.core.processes.join()`), all of which see the same folder.
        interruption: Stops the run where it can resume, by raising `Preempted`; the caller handles signals.
        minutes: Stops the run after this time, counted from this call, by raising `Preempted`; the same call resumes.
            A lap begins only if it is expected to end in time, except the first lap of a call and the final prior.

    Returns:
        The run: `run.prior`, `run.load(lap)`, `run.laps`, `run.verdict`, `run.path`.

    Raises:
        InputError: If observations, recipe and folder do not fit together.
        StorageError: If a file cannot be written. The same call resumes.
    """
    table = LapTable() if progress is not False and processes.is_first else None
    logger_names = require_loggers(loggers or ())
    with _interruptible(interruption, table) as stopping:
        if minutes is not None:
            stopping.stop_after(minutes)
        changes = dict(changes or {}) | ({} if seed is None else {"seed": seed})
        resolved, problem = _resolve(_observations(obs, A, sigma), recipe, changes, table, processes)
        folder = Path("runs") / resolved.name if out is None else Path(out)
        with closing(RunLoggers(folder, logger_names if processes.is_first else [])) as log:
            run = run_recipe(
                resolved,
                problem.obs,
                folder,
                start=start,
                device=device,
                progress=progress,
                on_event=_send_to_all(table, on_event, log.write),
                processes=processes,
                interruption=stopping,
            )
            log.write()  # laps of a run that was finished before
        if processes.is_first:
            _conclude(run, problem, table, report, processes.device() if device is None else device)
    return run


def _resolve(
    obs: Observations | None,
    recipe: str | Path | dict[str, Any] | Recipe,
    changes: dict[str, Any],
    table: LapTable | None,
    processes: Processes,
) -> tuple[Recipe, Problem]:
    """Return the validated recipe and the problem: the given observations, or those of the recipe's data source."""
    if obs is not None:
        changes = {**changes, "data": {"source": "given"}}
    with processes.announcing():
        resolved = load_recipe(recipe, changes)
        if table is not None and obs is None and resolved.data.source != "given":
            table("reading", {"recipe": resolved.name, "source": resolved.data.source})
        problem = _problem(obs, resolved, recipe, changes)
    if table is not None:
        table("data", {"about": problem.about})
    with processes.announcing():
        require_linear(problem.obs)
        require_features(problem.obs)
        require_learnable(problem.obs)
        require_signal(problem.obs)
        require_range(problem.obs)
    if processes.is_first:
        if obs is not None and recipe == "digits" and tuple(obs.x_shape) != (8, 8):
            warn(
                "the recipe 'digits', the default, is made for the digits of 8×8 pixels; for samples of shape "
                f"{tuple(obs.x_shape)} use 'small-images', 'images' or 'table'"
            )
        for text in data_warnings(problem.obs, images=resolved.network.kind == "unet"):
            warn(text)
    return resolved, problem


def _observations(obs: Any, A: Operator | None, sigma: Any) -> Observations | None:
    """Return the given observations, combined from y, A and sigma if necessary."""
    if obs is None or isinstance(obs, Observations):
        if A is not None or sigma is not None:
            what = "the recipe's data source" if obs is None else "obs"
            raise InputError(f"A and sigma need y alone: {what} has its own operator and noise level")
        return obs
    if isinstance(obs, str | os.PathLike):
        raise InputError(
            f"obs must be observations, got {str(obs)!r}; load a file with Observations.load, or pass a recipe as "
            "fit(recipe=...)"
        )
    if sigma is None:
        raise InputError("fit(y, ...) needs the noise level: sigma=0.1, for example, or sigma='learn' to estimate it")
    return Observations(obs, A, sigma)


def _problem(obs: Observations | None, resolved: Recipe, recipe: object, changes: dict[str, Any]) -> Problem:
    """Return the observations of the run, with the truth if it is known. Errors of a data source name the recipe."""
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


def _send_to_all(table: LapTable | None, on_event: EventListener | None, log: Callable[[], None]) -> EventListener:
    """Return a function that sends events to the caller, the table and the loggers, and issues a lap's warnings."""

    def send(event: str, data: dict[str, Any]) -> None:
        if on_event is not None:
            on_event(event, data)
        if table is not None:
            table(event, data)
        if event == "lap":
            for text in data.get("warnings", []):
                warn(f"lap {data['lap']}: {text}")
            log()

    return send


def _shows_all_laps(page: Path) -> bool:
    """Whether the report is newer than the metrics of all laps."""
    laps = [file.stat().st_mtime_ns for file in page.parent.glob("laps/*/metrics.json")]
    return page.is_file() and page.stat().st_mtime_ns >= max(laps, default=0)


def _conclude(run: Run, problem: Problem, table: LapTable | None, report: bool, device: torch.device | str) -> None:
    """Write the report, and print the verdict."""
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
def _interruptible(interruption: Interruption | None, table: LapTable | None) -> Iterator[Interruption]:
    """Stop the run at Ctrl-C and SIGTERM, so that it can be resumed, and then raise the signal again.

    A caller that passes an `Interruption` handles signals itself.
    """
    if interruption is not None:
        yield interruption
        return
    own = Interruption()
    usual = (signal.SIGINT, signal.SIGTERM)
    handled = [number for number in usual if signal.getsignal(number) not in (signal.SIG_IGN, None)]
    try:
        with own.listening(signals=handled):
            yield own
    except Preempted as where:
        where.reason = own.reason
        text = f"stopped {where.reason} ({where}); the same call resumes"
        if table is not None:
            table.line(text)
        if own.signal is None:
            raise
        try:
            signal.raise_signal(own.signal)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(text) from None  # without the places in the library where it stopped
        raise  # a handler of the caller caught the signal, and the run is not finished
    if own.signal is not None:
        signal.raise_signal(own.signal)  # the caller's handlers are restored
