"""Conversion of the tables that scikit-learn accepts to data frames, with checks, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_array

from ..core.counting import count_of
from ..core.errors import InputError

LARGEST = 1e300  # sums of larger numbers may overflow


def as_frame(X: Any, least_rows: int = 1) -> pd.DataFrame:
    """Convert X to a data frame, `(n, columns)`; the columns of an array or nested list are called x0, x1, …

    Args:
        X: The table; NaN, None and pandas' NA are missing values.
        least_rows: The smallest accepted number of rows.

    Raises:
        InputError: If the table has infinite or complex numbers, masked values, sparse columns or duplicate names, or
            is too small.
    """
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):  # the mask would be lost
        raise InputError("the table has masked values: convert it with X.filled(np.nan); a missing value is NaN")
    if not isinstance(X, pd.DataFrame):
        array = check_array(X, dtype=None, ensure_all_finite=False, ensure_min_samples=least_rows)
        X = pd.DataFrame(array, columns=[f"x{k}" for k in range(array.shape[1])])
    duplicates = X.columns[X.columns.duplicated()].unique().tolist()
    if duplicates:
        raise InputError(f"the names of columns must differ, but these occur more than once: {duplicates[:10]}")
    if X.shape[1] == 0:
        raise InputError(f"found a table of {count_of(len(X), 'row')} and 0 features: at least one column is needed")
    if len(X) < least_rows:
        raise InputError(f"found {len(X)} sample(s), that is rows, and a minimum of {least_rows} is needed")
    for name in X.columns:
        _check(X[name])
    return X


def _check(column: pd.Series) -> None:
    if pd.api.types.is_complex_dtype(column.dtype):
        raise InputError(f"Complex data not supported: column {column.name!r} holds complex numbers")
    if isinstance(column.dtype, pd.SparseDtype):
        raise InputError(
            f"column {column.name!r} is sparse: convert it with X[{column.name!r}].sparse.to_dense(). Zeros are values"
        )
    if pd.api.types.is_float_dtype(column.dtype):
        count = int((np.abs(column.to_numpy(dtype=np.float64, na_value=np.nan)) > LARGEST).sum())
    elif column.dtype == object:
        count = sum(isinstance(value, float) and abs(value) > LARGEST for value in column)
    else:
        return
    if count:
        raise InputError(
            f"column {column.name!r} holds {count} infinite values or values beyond {LARGEST:g}; a missing value is "
            "NaN, and a number must be finite"
        )


def like(frame: pd.DataFrame, X: Any) -> Any:
    """Convert the frame to the form of X: a data frame if X is one, otherwise an array of the dtype of X."""
    if isinstance(X, pd.DataFrame):
        return frame
    return frame.to_numpy(dtype=getattr(X, "dtype", None))


def filled(column: pd.Series, gaps: np.ndarray, values: np.ndarray) -> pd.Series:
    """Put values `(gaps,)` into the gaps `(n,)` of a column `(n,)`, in its own type if that is possible.

    A column of integers becomes floats if fractions are imputed, a categorical column gets missing categories, and a
    column of another unsuitable type (such as NaN alone, if words are imputed) gets a type that can hold them.
    """
    column = column.copy()
    if isinstance(column.dtype, pd.CategoricalDtype):
        new = [value for value in pd.unique(values) if value not in column.cat.categories]
        column = column.cat.add_categories(new)
    elif not pd.api.types.is_object_dtype(column.dtype):
        if pd.api.types.is_integer_dtype(column.dtype) and values.dtype.kind == "f" and len(values):
            column = column.astype("Float64")
        try:
            values = pd.Series(values).astype(column.dtype).array
        except (TypeError, ValueError, OverflowError):
            objects = column.astype(object)
            objects[gaps] = values
            return objects.infer_objects()
    column[gaps] = values
    return column
