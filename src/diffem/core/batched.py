"""Immutable values whose tensors may carry a leading observation axis.

Operators and covariances are such values: a mask or kernel is either shared by all observations or given one per
observation. The number of axes decides which of the two a tensor is. If that is ambiguous until the value meets data
(a mask `(64, 8, 8)` may be 64 masks of 8×8 or one of 64×8×8), slicing is deferred until then.
"""

from __future__ import annotations

import copy
import operator
from typing import Any, Self, TypeAlias

import torch
from torch import Tensor

from . import vector_math  # noqa: F401  # initialises it
from .counting import count_of
from .errors import InputError, RangeError

Index: TypeAlias = int | slice | list[int] | Tensor


def as_index(index: Index) -> slice | Tensor:
    """Convert an index so that it keeps the observation axis: an int selects a batch of one.

    Raises:
        InputError: If it is no int, no slice with a positive step, and no 1-d tensor or list of integers or booleans.
    """
    needed = (
        "an observation index must be an int, a slice with a positive step, or a 1-d tensor of integers or booleans"
    )
    if isinstance(index, slice):
        if index.step is not None and index.step < 1:
            raise InputError(f"{needed}, got the step {index.step}")
        return index
    if isinstance(index, bool):
        raise InputError(f"{needed}, got a bool")
    try:
        if not isinstance(index, Tensor) or index.ndim == 0:  # a tensor of one boolean would become a number
            number = operator.index(index)  # type: ignore[arg-type]
            return slice(number, number + 1 if number != -1 else None)
    except TypeError:
        pass
    try:
        index = torch.as_tensor(index)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{needed}, got {index!r}") from None
    if index.ndim != 1 or ((index.is_floating_point() or index.is_complex()) and len(index)):
        raise InputError(f"{needed}, got {index.dtype} of shape {tuple(index.shape)}")
    return index if index.dtype == torch.bool else index.long()


def take(values: Tensor, index: slice | Tensor) -> Tensor:
    """Select observations along the first axis of values `(n, ...)`.

    Args:
        values: The values of n observations.
        index: See `as_index`.

    Raises:
        InputError: If booleans are not one per observation.
        RangeError: If nothing is selected, or an observation that does not exist.
    """
    n = len(values)
    if isinstance(index, Tensor):
        if index.dtype == torch.bool and len(index) != n:
            raise InputError(
                f"a boolean index of {count_of(len(index), 'entry', 'entries')} does not fit "
                f"{count_of(n, 'observation')}"
            )
        # on an accelerator the device itself checks the range: reading the values back would synchronise
        if index.dtype != torch.bool and index.device.type == "cpu" and len(index):
            low, high = int(index.min()), int(index.max())
            if low < -n or high >= n:
                raise RangeError(f"observation {high if high >= n else low} of {n} does not exist")
        index = index.to(values.device)
    part = values[index]
    if len(part) == 0:
        raise RangeError(f"the index selects no observations: {index} of {n}")
    return part


class BatchedValue:
    """Base of the values. A subclass stores every tensor through `_store` and reads it back through `_read`."""

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] = {}
        self._shared_ndim: dict[str, int | None] = {}
        self._pending: tuple[slice | Tensor, ...] = ()

    @classmethod
    def _raw(cls, **tensors: tuple[Tensor, int | None]) -> Self:
        """Build from `(tensor, shared_ndim)` pairs without validation, which would read values back from the device."""
        new = cls.__new__(cls)
        BatchedValue.__init__(new)
        for name, (tensor, shared_ndim) in tensors.items():
            new._store(name, tensor, shared_ndim)
        return new

    def _store(self, name: str, tensor: Tensor, shared_ndim: int | None) -> None:
        """Keep `tensor`; with `shared_ndim` axes it is shared, with one more it has one entry per observation."""
        if shared_ndim is not None and tensor.ndim not in (shared_ndim, shared_ndim + 1):
            raise InputError(
                f"{type(self).__name__}: {name} must have {shared_ndim} axes (shared) or {shared_ndim + 1} "
                f"(one per observation), got shape {tuple(tensor.shape)}"
            )
        self._tensors[name] = tensor.detach()
        self._shared_ndim[name] = shared_ndim

    def _read(self, name: str, shared_ndim: int | None = None) -> Tensor:
        """The tensor with a leading axis of size 1 (shared) or n (one per observation)."""
        tensor = self._tensors[name]
        known = self._shared_ndim[name]
        ndim = known if known is not None else shared_ndim
        assert ndim is not None
        if tensor.ndim == ndim:
            return tensor.unsqueeze(0)
        if tensor.ndim != ndim + 1:
            raise InputError(
                f"{type(self).__name__}: {name} of shape {tuple(tensor.shape)} does not fit data whose samples have "
                f"{ndim} axes; give {ndim} axes (shared) or {ndim + 1} (one per observation)"
            )
        if known is None:
            for index in self._pending:
                tensor = take(tensor, index)
        return tensor

    def _bind(self, **shared_ndim: int) -> Self:
        """Return a copy in which ambiguous axes are resolved and deferred slices are applied."""
        new = copy.copy(self)
        new._tensors, new._shared_ndim = dict(self._tensors), dict(self._shared_ndim)
        for name, ndim in shared_ndim.items():
            if new._shared_ndim[name] is None:
                tensor = self._read(name, ndim)
                new._tensors[name] = tensor[0] if self._tensors[name].ndim == ndim else tensor
                new._shared_ndim[name] = ndim
        new._pending = ()
        return new

    @property
    def batch(self) -> int | None:
        """The number of observations the value holds parameters for; None when all are shared (or not yet known)."""
        sizes = {len(t) for t in self.per_observation().values()}
        if len(sizes) > 1:
            raise InputError(
                f"{type(self).__name__}: parameters disagree on the number of observations: {sorted(sizes)}"
            )
        return sizes.pop() if sizes else None

    def per_observation(self) -> dict[str, Tensor]:
        """The tensors that hold one entry per observation, by name."""
        return {
            name: tensor
            for name, tensor in self._tensors.items()
            if (ndim := self._shared_ndim[name]) is not None and tensor.ndim == ndim + 1
        }

    def __getitem__(self, index: Index) -> Self:
        index = as_index(index)
        new = copy.copy(self)
        new._tensors = {}
        for name, tensor in self._tensors.items():
            ndim = self._shared_ndim[name]
            per_observation = ndim is not None and tensor.ndim == ndim + 1
            new._tensors[name] = take(tensor, index) if per_observation else tensor
        if any(ndim is None for ndim in self._shared_ndim.values()):
            new._pending = (*self._pending, index)
        return new

    # without it, Python would iterate by index, which never ends for values that all observations share
    __iter__ = None

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move to a device or floating dtype, as `torch.Tensor.to`; boolean and index tensors keep their dtype."""
        new = copy.copy(self)
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        new._tensors = {
            name: t.to(device=device, dtype=dtype if t.is_floating_point() else None, non_blocking=non_blocking)
            for name, t in self._tensors.items()
        }
        return new

    def config(self) -> dict[str, Any]:
        """The constructor's arguments that are not tensors, as JSON values."""
        return {}

    def __repr__(self) -> str:
        parts = [f"{name}={tuple(t.shape)}" for name, t in self._tensors.items()]
        parts += [f"{name}={value!r}" for name, value in self.config().items() if value is not None]
        return f"{type(self).__name__}({', '.join(parts)})"
