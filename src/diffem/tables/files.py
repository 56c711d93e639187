"""Tables in files: CSV, TSV and Parquet."""

from __future__ import annotations

import io
from pathlib import Path

import pandas as pd

from ..core.errors import InputError
from ..files.writing import write_bytes

SUFFIXES = (".csv", ".tsv", ".parquet")


def read_table(path: Path) -> pd.DataFrame:
    """The table in a file; whole numbers with gaps are integers, and columns of true and false are truth values.

    Raises:
        InputError: The file cannot be read as a table, has duplicate column names or no rows.
    """
    try:
        if path.suffix == ".parquet":
            frame = pd.read_parquet(path)
        else:
            separator = "\t" if path.suffix == ".tsv" else ","
            names = pd.read_csv(path, sep=separator, header=None, nrows=1, dtype=str).iloc[0]
            duplicates = names[names.duplicated()].unique().tolist()
            if duplicates:  # pandas would rename them
                raise InputError(
                    f"{path}: the names of columns must differ, but these occur more than once: {duplicates[:10]}"
                )
            frame = pd.read_csv(path, sep=separator)
    except ImportError:
        raise InputError(f"{path}: reading Parquet needs the package pyarrow: pip install pyarrow") from None
    except (OSError, UnicodeDecodeError, pd.errors.ParserError, pd.errors.EmptyDataError) as error:
        raise InputError(f"{path} cannot be read as a table: {error}") from None
    if frame.empty:
        raise InputError(f"{path} holds {len(frame)} rows and {len(frame.columns)} columns: there is nothing to impute")
    return frame.apply(_with_gaps)


def _with_gaps(column: pd.Series) -> pd.Series:
    """Whole numbers and truth values in a type with missing values; pandas reads floating-point numbers and objects."""
    if pd.api.types.is_float_dtype(column.dtype) and bool((column.dropna() % 1 == 0).all()) and column.notna().any():
        return column.astype("Int64")
    if column.dtype == object and pd.api.types.infer_dtype(column, skipna=True) == "boolean":
        return column.astype("boolean")
    return column


def write_table(frame: pd.DataFrame, path: Path) -> None:
    """Write a table in the format that the name of the file tells; the file is whole or absent."""
    if path.suffix == ".parquet":
        buffer = io.BytesIO()
        try:
            frame.to_parquet(buffer, index=False)
        except ImportError:
            raise InputError(f"{path}: writing Parquet needs the package pyarrow: pip install pyarrow") from None
        write_bytes(path, buffer.getvalue())
    else:
        write_bytes(path, frame.to_csv(index=False, sep="\t" if path.suffix == ".tsv" else ",").encode())
