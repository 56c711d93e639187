"""A progress bar with rate and remaining time, on a terminal and in notebooks, for work of more than a few seconds.

Work can be interrupted each time it reports progress (see `interruption.poll`).
"""

from __future__ import annotations

import sys
import time
from importlib.util import find_spec
from types import TracebackType
from typing import Any, Self

from .interruption import poll

PATIENCE = 2.0  # seconds until a bar appears


class Progress:
    """`with Progress("posterior draws", total, unit="evaluations") as p: p.advance(k)`.

    Args:
        show: Whether to show the bar. None: on a terminal or in a notebook, after a few seconds of work.
    """

    def __init__(self, label: str, total: int, unit: str, show: bool | None = None) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.show = is_interactive() if show is None else show
        self.patience = PATIENCE if show is None else 0.0
        self.done = 0
        self._bar: Any = None
        self._started = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int, **fields: str) -> None:
        poll()
        self.done += count
        if not self.show:
            return
        elapsed = time.monotonic() - self._started
        if self._bar is None:
            if elapsed < self.patience:
                return
            self._open()
        rate = self.done / max(elapsed, 1e-9)
        note = "  ".join([f"{_short(rate)} {self.unit}/s", *(f"{k} {v}" for k, v in fields.items())])
        self._bar.update(self._task, completed=self.done, note=note)

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self.label, total=self.total, note="")


def is_interactive() -> bool:
    """Whether output goes to a terminal or to a notebook that can redraw a bar (with ipywidgets)."""
    if sys.stderr.isatty():
        return True
    return "ipykernel" in sys.modules and find_spec("ipywidgets") is not None


def _short(value: float) -> str:
    for limit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.1f}{suffix}"
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"
