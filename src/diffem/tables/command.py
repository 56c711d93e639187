"""From a file with gaps to a completed file and its report: what `diffem impute` does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..files.writing import write_text
from .assessment import assess, hide
from .files import read_table, write_table
from .imputer import DiffusionImputer
from .report import warnings_of, write_page


def impute(
    table: Path,
    out: Path,
    report: Path,
    *,
    imputer: DiffusionImputer,
    imputations: int = 0,
    say: Callable[[str], object] = print,
) -> None:
    """Complete the table in a file.

    Args:
        table: The file: CSV, TSV or Parquet.
        out: Where the completed table goes.
        report: Where the report goes.
        imputer: How to impute; it is fitted here, without a few observed values that the report predicts.
        imputations: How many further tables to write that are completed at random, beside `out`: NAME-1.csv,
            NAME-2.csv, …
        say: Prints a line.
    """
    frame = read_table(table)
    seed = imputer.random_state if isinstance(imputer.random_state, int) else 0
    hidden = hide(frame, seed)
    say(f"{table}: {len(frame)} rows, {len(frame.columns)} columns, {frame.isna().to_numpy().mean():.1%} missing")
    imputer.fit(frame.mask(hidden))
    write_table(imputer.transform(frame), out)
    say(str(out))
    for number, completed in enumerate(imputer.sample_posterior(frame, imputations) if imputations else [], 1):
        path = out.with_name(f"{out.stem}-{number}{out.suffix}")
        write_table(completed, path)
        say(str(path))
    found = assess(imputer, frame, hidden, imputer.draws, seed)
    drawn = imputer.sample_posterior(frame, 1)[0]
    calibrated = imputer.model_.held_out is not None
    write_text(report, write_page(table.name, frame, drawn, imputer.encoding_.columns, found, calibrated))
    for text in warnings_of(found):
        say(f"warning: {text}")
    say(str(report))
