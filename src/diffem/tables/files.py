"""Tables in files: CSV, TSV and Parquet."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

from ..core.errors import InputError
from ..files.writing import write_bytes

SUFFIXES = (".csv", ".tsv", ".parquet")


def require_format(path: Path) -> None:
    """Raise InputError unless tables can be read from and written to files of this name."""
    if path.suffix not in SUFFIXES:
        raise InputError(f"{path}: a table is a file that ends in {', '.join(SUFFIXES)}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        raise InputError(f"{path}: Parquet files need the package pyarrow: pip install diffem[parquet]")


def read_table(path: Path) -> pd.DataFrame:
    """Read the table in a file; whole numbers with gaps are integers, and columns of true and false are Boolean.

    Raises:
        InputError: If the file cannot be read as a table, has duplicate column names or no rows.
    """
    require_format(path)
    try:
        if path.suffix == ".parquet":
            frame, names = pd.read_parquet(path), pd.Series(dtype=str)
        else:
            separator = _separator(path)
            names = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0]
            frame = pd.read_csv(path, sep=separator)
    except (OSError, ValueError) as error:  # the errors of pandas and pyarrow about contents are ValueErrors
        raise InputError(f"{path} cannot be read as a table: {error}") from None
    duplicates = names[names.duplicated()].unique().tolist()
    if duplicates:  # pandas renamed them
        raise InputError(f"{path}: the names of columns must differ, but these occur more than once: {duplicates[:10]}")
    if frame.empty:
        raise InputError(f"{path} holds {len(frame)} rows and {len(frame.columns)} columns: there is nothing to impute")
    return frame.apply(_with_gaps)


def _with_gaps(column: pd.Series) -> pd.Series:
    """Convert integers and Booleans with gaps, which pandas reads as floats and objects, to nullable types."""
    if pd.api.types.is_float_dtype(column.dtype) and bool((column.dropna() % 1 == 0).all()) and column.notna().any():
        return column.astype("Int64")
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
