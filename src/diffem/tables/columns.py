"""The kind of a column: numbers, integers, Booleans or categories."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from pandas.api import types

from ..core.errors import InputError

Kind = Literal["numeric", "integer", "boolean", "categorical"]
KINDS: tuple[str, ...] = get_args(Kind)
FEW = 20  # number of categories that every column may have
MANY = 256  # largest number of categories of a column that the user has not named as categorical
MOST = 4096  # largest number of categories
COMMAS = r"[+-]?\d+(,\d+)+(\.\d*)?"  # numbers with decimal commas or separators of thousands


@dataclass(frozen=True)
class Column:
    """A column of the table that an imputer was fitted to.

    Attributes:
        categories: The observed values of a categorical or Boolean column.
    """

    name: Hashable
    kind: Kind
    categories: tuple[Any, ...] = ()

    @property
    def is_categorical(self) -> bool:
        """Whether its values are categories; Booleans are."""
        return self.kind in ("boolean", "categorical")

    def numbers(self, column: pd.Series) -> np.ndarray:
        """Convert values to float64 `(n,)`; categories become their index, missing and unknown values NaN."""
        if not self.is_categorical:
            return _as_floats(column, self.kind)
        values, missing = column.astype(object).to_numpy(), column.isna().to_numpy()
        codes = pd.Index(self.categories, dtype=object).get_indexer(values).astype(np.float64)
        found, known = ({type(value) for value in some} for some in (values[~missing], self.categories))
        if found.isdisjoint(known) and not missing.all() and (codes[~missing] < 0).all():
            raise InputError(
                f"column {self.name!r} holds values of another type than in fit: {_examples(column)} instead of "
                f"{_examples(pd.Series(self.categories, dtype=object))}"
            )
        return np.where((codes < 0) | missing, np.nan, codes)

    def values(self, numbers: np.ndarray) -> np.ndarray:
        """Invert `numbers`: floats, or an array of objects with categories or rounded Python integers."""
        if self.kind == "numeric":
            return numbers
        known = self.categories if self.is_categorical else None
        found = (int(k) if known is None else known[int(k)] for k in np.rint(numbers))
        values = np.empty(len(numbers), dtype=object)
        values[:] = list(found)
        return values


def describe(column: pd.Series, kind: str | None = None, round_integers: bool = True) -> Column:
    """Determine the kind of a column.

    Args:
        column: The values, `(n,)`.
        kind: The kind, one of `KINDS`, if the user has named it.
        round_integers: Whether a column of floating-point numbers that are all whole is `integer`; otherwise it is
            `numeric`.

    Raises:
        InputError: If the column has no values, or contains text, dates, or values that do not fit `kind`.
    """
    if kind is not None and kind not in KINDS:
        raise InputError(f"column {column.name!r}: the kind must be one of {', '.join(KINDS)}, got {kind!r}")
    observed = column.dropna()
    if observed.empty:
        raise InputError(f"column {column.name!r} has no observed value: nothing can be learned about it; leave it out")
    found = kind or _kind(observed, round_integers)
    if found in ("numeric", "integer"):
        numbers = _as_floats(observed, found)
        if found == "integer" and (numbers != np.rint(numbers)).any():
            raise InputError(f"column {column.name!r} must hold whole numbers, because its kind was set to integer")
        return Column(column.name, "integer" if found == "integer" else "numeric")
    return Column(column.name, "boolean" if found == "boolean" else "categorical", _categories(observed, kind))


def _kind(observed: pd.Series, round_integers: bool) -> str:
    dtype = observed.dtype
    if types.is_bool_dtype(dtype):
        return "boolean"
    if isinstance(dtype, pd.CategoricalDtype):
        return "categorical"
    if types.is_object_dtype(dtype) or types.is_string_dtype(dtype):
        inferred = pd.api.types.infer_dtype(observed, skipna=True)
        if inferred == "string":
            _require_no_altered_numbers(observed)
        if inferred in ("string", "mixed", "mixed-integer", "bytes"):
            return "categorical"
        if inferred == "boolean":
            return "boolean"
        if inferred not in ("integer", "floating", "mixed-integer-float", "decimal"):
            raise _unsupported(observed.name, inferred)
    elif not types.is_numeric_dtype(dtype):
        raise _unsupported(observed.name, str(dtype))
    if types.is_integer_dtype(dtype):
        return "integer"
    whole = round_integers and bool((_as_floats(observed, "numeric") % 1 == 0).all())
    return "integer" if whole else "numeric"


def _require_no_altered_numbers(observed: pd.Series) -> None:
    """Raise InputError for strings that are numbers except for commas (`1,5`) and marks of gaps (`?`)."""
    different = pd.Series(observed.unique()).str.strip()
    other = different[pd.to_numeric(different, errors="coerce").isna()]
    commas = other[other.str.fullmatch(COMMAS)]
    marks = other[other.str.fullmatch(r"\W*")]
    if len(commas) + len(marks) < len(other) or other.empty or len(marks) == len(different):
        return
    examples = ", ".join(map(repr, (*commas[:2], *marks[:2])))
    raise InputError(
        f"column {observed.name!r} seems to hold numbers, but also {examples}. A number has a decimal point and no "
        f"other separator, and a missing value is NaN or an empty field. If it holds categories, name it: "
        f"columns={{{observed.name!r}: 'categorical'}} (--kind {observed.name}=categorical)"
    )


def _unsupported(name: Hashable, found: str) -> InputError:
    dates = any(word in found for word in ("date", "time", "period"))
    example = f", for example to days: (t[{name!r}] - t[{name!r}].min()) / pd.Timedelta(days=1)" if dates else ""
    return InputError(
        f"column {name!r} holds values of type {found}, which cannot be imputed. Leave it out, or convert it to "
        f"numbers or categories{example}"
    )


def _as_floats(column: pd.Series, kind: str) -> np.ndarray:
    if isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype(object)
    if column.dtype.kind in "mM" or isinstance(column.dtype, pd.PeriodDtype):  # dates would become nanoseconds
        raise _unsupported(column.name, str(column.dtype))
    try:
        values = column.astype(object).where(column.notna(), np.nan) if column.dtype == object else column
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        raise InputError(
            f"column {column.name!r} is {kind}, but not all of its values are numbers: {_examples(column)}"
        ) from None


def _categories(observed: pd.Series, kind: str | None) -> tuple[Any, ...]:
    try:
        different = observed.astype(object).unique().tolist()
    except TypeError:
        raise InputError(
            f"column {observed.name!r}: every value must be a number, a string or a Boolean, got {_examples(observed)}"
        ) from None
    count, most = len(different), MOST if kind is not None else MANY
    if count > most or (kind is None and count > max(FEW, len(observed) // 2)):
        raise InputError(
            f"column {observed.name!r} seems to hold text: {count} different values in {len(observed)} rows, such as "
            f"{_examples(observed)}. Leave it out (diffem impute: --skip {observed.name}), or, if it holds categories, "
            f"set its kind: columns={{{observed.name!r}: 'categorical'}} (--kind {observed.name}=categorical)"
            + (f"; at most {MOST} categories are possible" if count > MOST else "")
        )
    return tuple(
        sorted(different, key=lambda value: (str(type(value)), value if isinstance(value, str) else 0, str(value)))
    )


def _examples(column: pd.Series) -> str:
    return ", ".join(repr(value)[:40] for value in column.dropna().iloc[:3])
