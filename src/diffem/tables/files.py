"""Tables in files: CSV, TSV and Parquet."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from ..core.counting import count_of
from ..core.errors import InputError
from ..files.writing import write_bytes

SUFFIXES = (".csv", ".tsv", ".parquet")
LARGEST = 2**63  # integers of a column are smaller


def require_format(path: Path) -> None:
    """Raise InputError unless tables can be read from and written to files of this name."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: a table is a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"{path}: Parquet files need the package pyarrow: pip install 'diffem[parquet]'")


def read_table(path: Path) -> pd.DataFrame:
    """Read the table in a file; whole numbers with gaps are integers, and columns of true and false are Boolean.

    In a text file, whole numbers with leading zeros (`007`) are strings, and an empty line of a single column is a gap.

    Raises:
        InputError: If the file cannot be read as a table, has another separator, rows with more fields than names,
            duplicate column names or no rows.
    """
    require_format(path)
    try:
        if path.suffix == ".parquet":
            frame, names = pd.read_parquet(path), pd.Series(dtype=str)
        else:
            names = _first_line(path)
            frame = _read_text(path, names)
    except UnicodeDecodeError as error:
        raise InputError(f"{path} cannot be read as a table: it must be saved as UTF-8 text ({error})") from None
    except (OSError, ValueError) as error:  # the errors of pandas and pyarrow about contents are ValueErrors
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).strip()
        raise InputError(f"{path} cannot be read as a table: {reason}") from None
    duplicates = names[names.duplicated()].unique().tolist()
    if duplicates:  # pandas renamed them
        raise InputError(
            f"{path}: the names of columns, its first line, must differ, but these occur more than once: "
            f"{duplicates[:10]}"
        )
    if frame.empty:
        raise InputError(
            f"{path} holds {count_of(len(frame), 'row')} and {count_of(len(frame.columns), 'column')}: there is "
            "nothing to impute"
        )
    return frame.apply(_with_gaps)


def warnings_about_names(path: Path, skipped: Sequence[str] = ()) -> list[str]:
    """Return warnings about the first line of a text file: columns without a name, and values in place of names."""
    if path.suffix == ".parquet":
        return []
    names = _first_line(path)
    found = []
    unnamed = [f"Unnamed: {place}" for place in names.index[names == ""]]  # as pandas names them
    if unused := [name for name in unnamed if name not in skipped]:
        found.append(
            f"the name of a column is missing in the first line of {path}; the column is called {unused[0]!r}. If it "
            f"holds row numbers, which are no property of a row, leave it out: --skip {unused[0]!r}"
        )
    numbers = [name for name in names if re.fullmatch(r"\s*[+-]?\d*[.]\d+(e[+-]?\d+)?\s*", name, re.I)]
    if numbers:
        found.append(
            f"the first line of {path} is read as the names of the columns, but holds numbers, such as {numbers[0]!r}: "
            "if it is a row of the table, insert a line with names"
        )
    return found


def _first_line(path: Path) -> pd.Series:
    return pd.read_csv(path, sep=_separator(path), header=None, nrows=1, dtype=str, keep_default_na=False).iloc[0]


def read_strings(path: Path) -> pd.DataFrame:
    """Read the fields of a CSV or TSV file as they are written, as strings."""
    return _parsed(path, dtype=str, na_filter=False)


def _read_text(path: Path, names: pd.Series) -> pd.DataFrame:
    """Read a CSV or TSV file without changing a value; names: the fields of its first line."""
    separator, only = _separator(path), str(names.iloc[0])
    other = next((mark for mark in ";\t," if mark != separator and mark in only), None)
    if len(names) == 1 and other:
        raise InputError(
            f"the first line {only!r} seems to be separated by {other!r}, but the fields of a {path.suffix} file are "
            f"separated by {separator!r}, and its numbers have decimal points"
        )
    try:
        frame, strings = _parsed(path), read_strings(path)
    except pd.errors.ParserWarning:
        raise InputError(f"its rows have more fields than its first line has names, {len(names)}") from None
    return frame.apply(lambda column: _exact(column, strings[column.name]))


def _parsed(path: Path, **options: Any) -> pd.DataFrame:
    """Read a CSV or TSV file; an empty line is a row if there is one column, otherwise it is nothing."""
    options |= {"sep": _separator(path), "index_col": False}  # otherwise additional fields become the index
    with warnings.catch_warnings():
        warnings.simplefilter("error", pd.errors.ParserWarning)  # fields would be lost
        frame = pd.read_csv(path, **options)
        return frame if len(frame.columns) > 1 else pd.read_csv(path, skip_blank_lines=False, **options)


def _exact(column: pd.Series, strings: pd.Series) -> pd.Series:
    """Correct a column of which pandas has changed values, from its fields as they are written."""
    if not pd.api.types.is_numeric_dtype(column.dtype):
        return column.mask(strings == "")  # pandas keeps empty fields of columns with integers beyond 64 bits
    stripped = strings.str.strip()
    if stripped.str.fullmatch(r"[+-]?0\d+").any():
        return stripped.where(column.notna())
    known = column.notna()
    if column.dtype.kind == "f" and known.any() and stripped[known].str.fullmatch(r"[+-]?\d+").all():
        integers = [int(text) if there else pd.NA for text, there in zip(stripped, known, strict=True)]
        if max(abs(value) for value in integers if value is not pd.NA) < LARGEST:  # a float does not hold all of them
            return pd.Series(integers, dtype="Int64", index=column.index, name=column.name)
    return column


def _with_gaps(column: pd.Series) -> pd.Series:
    """Convert integers and Booleans with gaps, which pandas reads as floats and objects, to nullable types."""
    if pd.api.types.is_float_dtype(column.dtype) and column.notna().any():
        whole = bool((column.dropna() % 1 == 0).all()) and column.abs().max() < LARGEST
        return column.astype("Int64") if whole else column
    if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) == "boolean":
        return column.astype("boolean")
    return column


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table in the format of the file name's ending, atomically."""
    require_format(path)
    if path.suffix == ".parquet":
        buffer = io.BytesIO()
        frame.to_parquet(buffer)
        write_bytes(path, buffer.getvalue())
    else:
        write_bytes(path, frame.to_csv(index=False, sep=_separator(path)).encode())


def _separator(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","
