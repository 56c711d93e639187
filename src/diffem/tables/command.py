"""The work of `diffem impute`: read a table with gaps, write the completed table and a report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from ..core.counting import count_of
from ..core.errors import InputError
from ..files.writing import write_text
from .assessment import assess, hide
from .files import read_strings, read_table, require_format, warnings_about_names, write_table
from .imputer import DiffusionImputer
from .report import warnings_of, write_page


def impute(
    table: Path,
    out: Path,
    report: Path,
    *,
    imputer: DiffusionImputer,
    imputations: int = 0,
    skip: Sequence[str] = (),
    print_line: Callable[[str], object] = print,
) -> None:
    """Complete the table in a file.

    Args:
        table: A CSV, TSV or Parquet file.
        out: The file of the completed table.
        report: The file of the report.
        imputer: The imputer; it is fitted here, without a few observed values that the report predicts.
        imputations: The number of additional tables that are completed with random draws: NAME-1.csv, NAME-2.csv, …
        skip: Columns that are copied without being used or imputed.
        print_line: Called with every line of the output.

    Raises:
        InputError: If a file cannot be read or written, would replace the table itself, or a column to skip does not
            exist.
    """
    require_format(out)
    drawn = [out.with_name(f"{out.stem}-{number}{out.suffix}") for number in range(1, imputations + 1)]
    for path in (out, *drawn):
        if path.resolve() == table.resolve():
            raise InputError(
                f"{path} is the input table, which would be overwritten; give the completed table another name"
            )
    whole = read_table(table)
    unknown = [name for name in skip if name not in whole.columns]
    if unknown:
        raise InputError(
            f"columns to skip must exist in {table}, got {unknown[:5]}; its columns are {list(whole.columns)[:20]}"
        )
    for text in warnings_about_names(table, skip):
        print_line(f"warning: {text}")
    frame = whole.drop(columns=list(skip))
    typed = ".parquet" in (table.suffix, out.suffix)
    copied = whole[list(skip)] if typed or not skip else read_strings(table)[list(skip)]

    def write(completed: pd.DataFrame, path: Path) -> None:
        write_table(pd.concat([completed, copied], axis=1)[whole.columns], path)
        print_line(str(path))

    seed = imputer.random_state if isinstance(imputer.random_state, int) else 0
    hidden = hide(frame, seed)
    print_line(
        f"{table}: {count_of(len(frame), 'row')}, {count_of(len(frame.columns), 'column')}, "
        f"{frame.isna().to_numpy().mean():.1%} missing"
    )
    imputer.fit(frame.mask(hidden))
    write(imputer.transform(frame), out)
    for completed, path in zip(imputer.sample_posterior(frame, imputations) if drawn else [], drawn, strict=True):
        write(completed, path)
    assessments = assess(imputer, frame, hidden, imputer.draws, seed)
    example = imputer.sample_posterior(frame, 1)[0]
    calibrated = imputer.model_.held_out is not None
    write_text(report, write_page(table.name, frame, example, imputer.encoding_.columns, assessments, calibrated))
    for text in warnings_of(assessments):
        print_line(f"warning: {text}")
    print_line(str(report))
