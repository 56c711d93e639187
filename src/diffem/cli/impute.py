"""The command for tables: fill the gaps of a CSV or Parquet file."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from ..core.errors import InputError
from .options import SeedOption, require_file


def impute(
    table: Annotated[Path, typer.Argument(metavar="TABLE", help="the table with gaps: .csv, .tsv or .parquet")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the completed table to write: .csv, .tsv or .parquet")],
    draws: Annotated[
        int, typer.Option("--draws", min=2, help="random draws per missing value; their mean is filled in")
    ] = 20,
    imputations: Annotated[
        int,
        typer.Option("--imputations", min=0, help="also write this many tables completed at random: OUT-1.csv, …"),
    ] = 0,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="COLUMN=KIND",
            help="kind of a column: numeric, integer, boolean or categorical; may be repeated",
        ),
    ] = None,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            "--skip",
            metavar="COLUMN",
            help="copy this column unchanged, such as an identifier, a date or text; may be repeated",
        ),
    ] = None,
    laps: Annotated[
        int | None, typer.Option("--laps", min=1, help="laps of EM. Default: depends on the number of rows")
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="training steps per lap. Default: depends on the number of rows"),
    ] = None,
    folds: Annotated[
        int | None,
        typer.Option(
            "--folds",
            min=1,
            help="models, each fitted without another part of the rows. Default: 4 for 40 to 999 rows, otherwise 1",
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", help="the HTML report to write. Default: OUT.html")] = None,
    seed: SeedOption = 0,
) -> None:
    """Fill the gaps of a table, and report how accurate that is.

    Observed values are never changed.

    For the report, a few observed values are hidden from the fit and predicted.
    """
    try:
        tables, command, files = (import_module(f"diffem.tables{name}") for name in ("", ".command", ".files"))
    except ImportError as error:
        raise InputError(
            f"imputing tables needs scikit-learn and pandas: pip install 'diffem[tables]' ({error})"
        ) from None
    require_file("--out", out, *files.SUFFIXES)
    page = require_file("--report", report or out.with_suffix(".html"), ".html")
    kinds = dict(_named(text) for text in kind or [])
    imputer = tables.DiffusionImputer(
        laps=laps, steps=steps, folds=folds, draws=draws, columns=kinds, random_state=seed, verbose=True
    )
    command.impute(table, out, page, imputer=imputer, imputations=imputations, skip=skip or [], print_line=typer.echo)


def _named(text: str) -> tuple[str, str]:
    name, separator, kind = text.rpartition("=")
    if not separator or not name:
        raise InputError(f"--kind needs COLUMN=KIND, got {text!r}")
    return name, kind


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(impute)
