"""Conversion of NumPy arrays, pandas frames, lists of arrays and indexable data sets to tensors.

Nothing is rounded here: integers become the smallest floating-point type that represents them exactly, and float64
stays float64.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arrays import from_array
from ..core.counting import count_of
from ..core.errors import InputError
from ..files.memory import is_out_of_memory
from ..operators import Channel, Identity, Mask, Operator
from ..operators.user_check import UserOperatorError, require_linear

EXACT = 1 << 24  # integers up to this size are exact in float32
CHUNK_BYTES = 1 << 26  # bytes of y that are checked at a time


def as_tensor(values: Any, name: str) -> Tensor:
    """Convert values to a tensor of floating-point or complex numbers.

    Args:
        values: A tensor; a NumPy array, possibly masked; a pandas or polars frame or series; a list or tuple of numbers
            or of any of these; or an object with a length that is indexed by 0, 1, 2 …, such as a
            `torch.utils.data.Dataset`, whose items are arrays or tuples that start with an array.
        name: The name of the argument in error messages.
    """
    if isinstance(values, Tensor):
        return values
    if isinstance(values, np.ma.MaskedArray):
        return as_tensor(np.where(np.ma.getmaskarray(values), np.nan, _floating(values.data, name)), name)
    if isinstance(values, np.ndarray | np.generic | bool | int | float | complex):
        return from_array(_floating(np.asarray(values), name))
    if hasattr(values, "to_numpy"):
        return from_array(_floating(_from_frame(values, name), name))
    if hasattr(values, "__array__") or hasattr(values, "__array_interface__"):  # PIL images, arrays of other libraries
        return from_array(_floating(np.asarray(values), name))
    if isinstance(values, str | bytes | Mapping) or not (hasattr(values, "__len__") and hasattr(values, "__getitem__")):
        raise InputError(
            f"{name} must be a tensor, an array, a data frame, a list of arrays or a data set with a length, "
            f"got {type(values).__name__}" + ("; choose one of its entries" if isinstance(values, Mapping) else "")
        )
    return _stacked(values, name)


def _floating(array: np.ndarray, name: str) -> np.ndarray:
    """Convert an array to float32, float64, complex64 or complex128, without rounding."""
    kind = array.dtype.kind
    if kind in "iu":
        small = array.size == 0 or (int(array.min()) >= -EXACT and int(array.max()) <= EXACT)
        return array.astype(np.float32 if small else np.float64)
    if array.dtype == np.float16:
        return array.astype(np.float32)
    if array.dtype.newbyteorder("=") in (np.float32, np.float64, np.complex64, np.complex128):
        return array
    what = "booleans (pass a mask to operators.Mask instead)" if kind == "b" else f"{array.dtype}"
    raise InputError(f"{name} must hold numbers (integers, float32, float64 or complex), got an array of {what}")


def _from_frame(frame: Any, name: str) -> np.ndarray:
    """Convert a data frame or series; missing values become NaN."""
    array = np.asarray(frame.to_numpy())
    if array.dtype.kind in "iufc":
        return array
    words = [str(column) for column in getattr(frame, "columns", []) if not _is_numeric(frame[column])]
    if words:
        raise InputError(
            f"{name} must contain only numbers; these columns contain other values: {', '.join(words[:8])}. Encode "
            "them as numbers, or drop them"
        )
    try:  # columns with another marker of missing values (pandas.NA, None)
        return np.asarray(
            [[np.nan if v is None or v is not v or _is_na(v) else float(v) for v in row] for row in array]
        )
    except (TypeError, ValueError):
        raise InputError(f"{name} must hold numbers, got {type(frame).__name__} of {array.dtype}") from None


def _is_numeric(column: Any) -> bool:
    values = np.asarray(column.to_numpy())
    if values.dtype.kind in "iufc":
        return True
    present = [v for v in values.tolist() if v is not None and not _is_na(v)]
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in present)


def _is_na(value: Any) -> bool:
    return type(value).__name__ in ("NAType", "NaTType")


def _stacked(items: Sequence[Any], name: str) -> Tensor:
    """Stack the items of a list or data set along a new first axis."""
    if len(items) == 0:
        raise InputError(
            f"{name} must hold at least one sample along its first axis, got an empty {type(items).__name__}"
        )
    if not isinstance(items, list | tuple):
        items = [_first(items[i]) for i in range(len(items))]  # a data set; an index beyond its end may not raise
    if all(isinstance(item, int | float) for item in items):
        return from_array(_floating(np.asarray(items), name))
    tensors = [as_tensor(item, f"{name}[{i}]") for i, item in enumerate(items)]
    tensors = [
        t if t.is_floating_point() or t.is_complex() else from_array(_floating(t.numpy(), name)) for t in tensors
    ]
    for i, tensor in enumerate(tensors):
        if tensor.shape != tensors[0].shape:
            raise InputError(
                f"the samples of {name} must have one shape: {name}[0] has {tuple(tensors[0].shape)}, "
                f"{name}[{i}] has {tuple(tensor.shape)}"
            )
    dtype = tensors[0].dtype
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    return torch.stack([tensor.to(dtype) for tensor in tensors])


def _first(item: Any) -> Any:
    """The sample of an item of a data set. Items are often pairs of a sample and a label."""
    return item[0] if isinstance(item, tuple | list) and len(item) and not isinstance(item[0], int | float) else item


def aligned(sigma: Any, y: Any) -> Any:
    """Put labelled noise levels in the order of a data frame.

    Args:
        sigma: A pandas series whose labels are the columns or the rows of y, or a frame with the columns of y. Other
            values, and a series with the labels 0, 1, 2 …, are returned as they are.
    """
    columns = list(getattr(y, "columns", ()))
    if not columns or not hasattr(sigma, "to_numpy"):
        return sigma
    names = getattr(sigma, "columns", getattr(sigma, "index", None))
    labels = columns if names is None else list(names)
    if labels == columns or labels == list(range(len(labels))) or labels == list(getattr(y, "index", ())):
        return sigma
    if len(labels) != len(columns) or set(labels) != set(columns):
        raise InputError(f"sigma has the labels {labels[:8]}, y has the columns {columns[:8]}")
    return sigma[columns]


# for error messages: how to pass complex numbers that were measured directly
COMPLEX_ADVICE = (
    "Complex images that were measured directly are passed as two channels, "
    "torch.view_as_real(y).movedim(-1, 1), with NaN in both where nothing was measured"
)


def real_view(y: Tensor, A: Operator) -> Tensor:
    """Return y with a last axis of real and imaginary parts if it is complex, otherwise unchanged.

    Raises:
        InputError: If only one of y and the measurements of A is complex.
    """
    if y.is_complex() and not A.complex_output:
        raise InputError(f"y is complex ({y.dtype}) but {type(A).__name__} measures real numbers. {COMPLEX_ADVICE}")
    if not y.is_complex() and A.complex_output and (y.ndim < 2 or y.shape[-1] != 2):
        raise InputError(
            f"{type(A).__name__} measures complex numbers: y must be complex, or real with a last axis of 2 (real "
            f"and imaginary part), got {y.dtype} of shape {tuple(y.shape)}"
        )
    return torch.view_as_real(y.resolve_conj()) if y.is_complex() else y


def implied_operator(y: Tensor) -> Operator:
    """Make the operator of observations that were given without one: NaN marks unmeasured entries."""
    if y.is_complex():
        raise InputError(
            f"y is complex: name the operator A that measured it, such as operators.Fourier(mask). {COMPLEX_ADVICE}"
        )
    missing = torch.isnan(y)
    return Mask(~missing) if missing.any() else Identity()


def try_operator(A: Operator, y: Tensor) -> tuple[Tensor, Tensor]:
    """Apply Aᵀ and A to the first observation of y `(n, *measurement)`; a channel is tried by `check_channel`.

    Operators that the user wrote are checked (`require_linear`). Their errors become `InputError`.
    """
    if isinstance(A, Channel):
        assert A.x_shape is not None
        return y.new_zeros(1, *A.x_shape), y[:1]
    try:
        x = A[:1].adjoint(y[:1])
        require_linear(A, x)
        return x, A[:1](x)
    except UserOperatorError:
        raise
    except InputError as error:
        raise InputError(f"y of shape {tuple(y.shape)} does not fit A: {error}") from None
    except Exception as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise InputError(
            f"A fails on y of shape {tuple(y.shape)} and {y.dtype}: {type(error).__name__}: {error}. A Function may "
            "use torch operations only, not NumPy, and must compute in the dtype and on the device of its argument: "
            "convert its constants with .to(x)"
        ) from error


def require_batch_of(A: Operator, n: int) -> None:
    """Raise InputError if A has parameters for another number of observations than n."""
    if A.batch is not None and A.batch != n:
        raise InputError(
            f"y holds {count_of(n, 'observation')}, but A has parameters for {A.batch}; parameters that all "
            "observations share have no axis of observations"
        )


def without_unmeasured(y: Tensor, A: Operator) -> Tensor:
    """Set unmeasured entries of y to 0, without a copy if they are 0 already. Large y are processed in parts."""
    measured = A.measured(y)
    rows = max(1, CHUNK_BYTES // max(1, y[0].numel() * y.element_size()))
    bad, same, has_nan = [], True, False
    for start in range(0, len(y), rows):
        part = y[start : start + rows]
        if measured is not None:
            mask = measured if len(measured) == 1 else measured[start : start + rows]
            whole, part = part, torch.where(mask, part, 0)
            same = same and torch.equal(whole, part)
        finite = torch.isfinite(part).flatten(1).all(1)
        bad += (start + (~finite).nonzero().flatten()).tolist()
        has_nan = has_nan or (not finite.all() and bool(part.isnan().any()))
    if bad:
        entries = "measured[..., None]" if A.complex_output else "measured"  # the last axis of y is (re, im)
        direct = "operators.Fourier(measured) for k-space" if A.complex_output else "operators.Mask(measured)"
        advice = (
            f". NaN means 'not measured' only if no operator is given; otherwise use {direct}, or "
            f"operators.Compose(operators.Mask({entries}), A) after another operator A"
        )
        raise InputError(
            f"y holds non-finite measured values, first in observation {bad[0]} ({len(bad)} in all)"
            + (advice if has_nan else "")
        )
    return y if same or measured is None else torch.where(measured, y, 0)
