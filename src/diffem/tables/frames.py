"""Tables as data frames: whatever scikit-learn's estimators take comes in, and is checked where it does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_array

from ..core.errors import InputError


def as_frame(X: Any, least_rows: int = 1) -> pd.DataFrame:
    """X as a data frame, `(n, columns)`; the columns of an array or nested list are called x0, x1, …

    Args:
        X: The table; NaN, None and pandas' NA are missing values.
        least_rows: How many rows it must have.

    Raises:
        InputError: The table holds infinite or complex numbers, has duplicate column names, or is too small.
    """
    if not isinstance(X, pd.DataFrame):
        array = check_array(X, dtype=None, ensure_all_finite=False, ensure_min_samples=least_rows)
        X = pd.DataFrame(array, columns=[f"x{k}" for k in range(array.shape[1])])
    duplicates = X.columns[X.columns.duplicated()].unique().tolist()
    if duplicates:
        raise InputError(f"the names of columns must differ, but these occur more than once: {duplicates[:10]}")
    if X.shape[1] == 0:
        raise InputError(f"found a table of {len(X)} rows and 0 features: at least one column is needed")
    if len(X) < least_rows:
        raise InputError(f"found {len(X)} sample(s), that is rows, and a minimum of {least_rows} is needed")
    for name in X.columns:
        _refuse_infinite(X[name])
    return X


def _refuse_infinite(column: pd.Series) -> None:
    if pd.api.types.is_complex_dtype(column.dtype):
        raise InputError(f"Complex data not supported: column {column.name!r} holds complex numbers")
    if not pd.api.types.is_float_dtype(column.dtype):
        return
    count = int(np.isinf(column.to_numpy(dtype=np.float64, na_value=np.nan)).sum())
    if count:
        raise InputError(
            f"column {column.name!r} holds {count} infinite values; a missing value is NaN, and a number must be finite"
        )


def like(frame: pd.DataFrame, X: Any) -> Any:
    """The frame in the form of X: a data frame if X is one, and otherwise an array of X's type of numbers."""
    if isinstance(X, pd.DataFrame):
        return frame
    return frame.to_numpy(dtype=getattr(X, "dtype", None))
