"""What a run prints while it works, from Python and from the command line alike: a row per lap, notes, and a verdict at the end.

Warnings are not printed here: they go through Python's `warnings` (`RunWarning`), which programs can catch and the command
line prints.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from ..core.errors import RunWarning
from .verdict import Verdict

PACKAGE = str(Path(__file__).parents[1])

# heading, key of the lap's measures, format, width; 79 characters in all
COLUMNS = (
    ("lap", "lap", "{:d}", 3),
    ("χ²", "heldout_chi2", "{:.2f}", 6),
    ("predictive", "predictive_log_likelihood", "{:.3f}", 14),
    ("y distance", "observation_distance", "{:.4f}", 11),
    ("rejected", "rejected", "{:.1%}", 9),
    ("guards", "guards", "{:.1%}", 7),
    ("loss", "loss", "{:.4f}", 8),
    ("E [s]", "e_seconds", "{:.1f}", 7),
    ("M [s]", "m_seconds", "{:.1f}", 7),
    ("watch", "watch_seconds", "{:.1f}", 7),
)


class LapTable:
    """Prints the events of a run to standard output: `LapTable()(event, data)`."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(highlight=False)
        self.header = False

    def line(self, text: str, style: str | None = None) -> None:
        # paths and sentences stay on one line, however long: in a file they are searched for
        self.console.print(text, style=style, soft_wrap=True, markup=False)

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        if event == "reading":
            self.line(f"{data['recipe']}: making the observations of {data['source']} ...")
        elif event == "data" and data["about"]:
            self.line(data["about"])
        elif event == "start":
            self.line(_start(data))
        elif event == "starting":
            self.line("fitting the Gaussian start ..." if data["start"] == "gaussian" else "reading the start ...")
        elif event == "started":
            rounds = f"{data['rounds']} rounds, " if "rounds" in data else ""
            self.line(f"start: {rounds}{data['start_seconds']:.1f} s; measuring it and checking the model ...")
        elif event == "memory":
            self.line(f"  lap {data['lap']}: out of memory; drawing again, {data['batch']} at a time", "yellow")
        elif event == "lap":
            self.row(data)

    def row(self, metrics: dict[str, Any]) -> None:
        if not self.header:
            self.line(_aligned([name for name, *_ in COLUMNS]), "bold")
            self.header = True
        self.line(_aligned([_cell(metrics, key, form) for _, key, form, _ in COLUMNS]))
        for note in metrics.get("notes", []):
            self.line(f"  note: {note}")

    def end(self, found: Verdict, run: Path, page: Path | None) -> None:
        self.line(found.text, "yellow" if found.worse else None)
        self.line(f"run     {run}")
        if page is not None:
            self.line(f"report  {page}")


def _start(data: dict[str, Any]) -> str:
    state = "new run" if data["done"] < 0 else f"going on after lap {data['done']}"
    if data["done"] >= data["laps"]:
        state = "all laps are done"
    where = data["device"] if data["processes"] == 1 else f"{data['processes']} processes"
    held = data["held_out"]
    kept = f" and {held} held out to watch the run" if held else ", none held out"
    return f"{data['observations']} observations to learn from{kept}; {data['laps']} laps on {where}; {state}"


def _cell(metrics: dict[str, Any], key: str, form: str) -> str:
    if metrics.get(key) is None:
        return "–"
    error = metrics.get("predictive_error") if key == "predictive_log_likelihood" else None
    return form.format(metrics[key]) + ("" if error is None else f" ±{error:.3f}")


def _aligned(cells: list[str]) -> str:
    """A row of the table. A cell wider than its column moves the following ones, and is never joined to the one before."""
    row = ""
    for cell, (*_, width) in zip(cells, COLUMNS, strict=True):
        row += f"{cell:>{width}}" if not row or len(cell) < width else f" {cell}"
    return row


def warn(text: str) -> None:
    """A `RunWarning` that names the line outside this library that called it."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(PACKAGE):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, RunWarning, stacklevel=level)
