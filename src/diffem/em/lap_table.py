"""The output of a run on the terminal: a row per lap, notes, and a verdict at the end.

Warnings are not printed here. They are issued as Python warnings (`RunWarning`), which programs can catch and which the
command line prints.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ..core.counting import count_of
from ..runs.lap_metrics import METRIC
from .verdict import Verdict


class Column(NamedTuple):
    """A column of the table: a metric, and a heading and format that are shorter than those of the report."""

    key: str
    width: int
    heading: str = ""
    form: str | None = None
    otherwise: str | None = None  # the metric to show where a run does not have the first

    def text(self, lap: dict[str, Any]) -> str:
        """The value of a lap, with its standard error if it has one."""
        key = self.key if self.otherwise is None or lap.get(self.otherwise) is None else self.otherwise
        return METRIC[key].text(lap, self.form, " ±")


COLUMNS = (  # 79 characters in all
    Column("lap", 3, "lap", "{:d}"),
    Column("heldout_chi2", 6, "χ²", "{:.2f}"),
    Column("predictive_log_likelihood", 14, otherwise="simulation_score"),
    Column("observation_distance", 11),
    Column("rejected", 9, form="{:.1%}"),
    Column("guards", 7, form="{:.1%}"),
    Column("loss", 8),
    Column("e_seconds", 7),
    Column("m_seconds", 7),
    Column("watch_seconds", 7, "watch"),
)


class LapTable:
    """Prints the events of a run to standard output: `LapTable()(event, data)`."""

    def __init__(self) -> None:
        from rich.console import Console

        # in a notebook too: rich would make a separate HTML output of every line
        self.console = Console(highlight=False, force_jupyter=False)
        self.header = False

    def line(self, text: str, style: str | None = None) -> None:
        """Print a line without wrapping it, so that it can be searched in a log file."""
        self.console.print(text, style=style, soft_wrap=True, markup=False)

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        if event == "reading":
            self.line(f"{data['recipe']}: loading the observations of {data['source']} ...")
        elif event == "data" and data["about"]:
            self.line(data["about"])
        elif event == "start":
            self.line(_start(data))
        elif event == "starting":
            self.line("fitting the Gaussian start ..." if data["start"] == "gaussian" else "loading the start ...")
        elif event == "started":
            rounds = f"{count_of(data['rounds'], 'round')}, " if "rounds" in data else ""
            self.line(f"start: {rounds}{data['start_seconds']:.1f} s; evaluating it and checking the model ...")
        elif event == "memory":
            self.line(f"  lap {data['lap']}: out of memory; drawing again in batches of {data['batch']}", "yellow")
        elif event == "lap":
            self.row(data)

    def row(self, metrics: dict[str, Any]) -> None:
        """Print the row of a lap and its notes."""
        if not self.header:
            self.line(_aligned([column.heading or METRIC[column.key].heading for column in COLUMNS]), "bold")
            self.header = True
        self.line(_aligned([column.text(metrics) for column in COLUMNS]))
        for note in metrics.get("notes", []):
            self.line(f"  note: {note}")

    def end(self, result: Verdict, run: Path, page: Path | None) -> None:
        """Print the verdict and the paths of the run and its report."""
        self.line(result.text, "yellow" if result.worse else None)
        self.line(f"run     {run}")
        if page is not None:
            self.line(f"report  {page}")


def _start(data: dict[str, Any]) -> str:
    state = "new run" if data["done"] < 0 else f"resuming after lap {data['done']}"
    final = data.get("final", False)
    if data["done"] >= data["laps"] + final:
        state = "all laps are done"
    where = data["device"] if data["processes"] == 1 else f"{data['processes']} processes"
    held = data["held_out"]
    held_out = f" and {held} held out for evaluation" if held else ", none held out"
    laps = f"{count_of(data['laps'], 'lap')}{' and the final prior' if final else ''}"
    return f"{count_of(data['observations'], 'observation')} for training{held_out}; {laps} on {where}; {state}"


def _aligned(cells: list[str]) -> str:
    """Return a row of the table. A cell that is wider than its column moves the following cells."""
    row = ""
    for cell, column in zip(cells, COLUMNS, strict=True):
        row += f"{cell:>{column.width}}" if not row or len(cell) < column.width else f" {cell}"
    return row
