"""Composite operators: composition and stacking."""

from __future__ import annotations

import math
from typing import Any, Self

import torch
from torch import Tensor

from ..core.batched import Index
from ..core.counting import count_of
from ..core.errors import InputError
from .base import Operator
from .channel import Channel
from .identity import Identity
from .mask import Mask
from .spectrum import Entries, Spectrum


class _Composite(Operator):
    def __init__(self, *operators: Operator) -> None:
        super().__init__()
        if len(operators) < 2 or not all(isinstance(A, Operator) for A in operators):
            raise InputError(f"{type(self).__name__} needs two or more operators, got {operators!r}")
        if any(isinstance(A, Channel) for A in operators):
            raise InputError(
                f"a Channel cannot be part of {type(self).__name__}: apply the other operators in simulate"
            )
        self._children = tuple(operators)
        sizes = {A.batch for A in operators} - {None}
        if len(sizes) > 1:
            raise InputError(
                f"{type(self).__name__}: parts hold parameters for different numbers of observations: {sizes}"
            )

    def children(self) -> tuple[Operator, ...]:
        return self._children

    @property
    def batch(self) -> int | None:
        return next((A.batch for A in self._children if A.batch is not None), None)

    def _rebuilt(self, operators: tuple[Operator, ...]) -> Self:
        return type(self)(*operators, **self.config())

    def __getitem__(self, index: Index) -> Self:
        return self._rebuilt(tuple(A[index] for A in self._children))

    def to(self, *args: Any, **kwargs: Any) -> Self:
        return self._rebuilt(tuple(A.to(*args, **kwargs) for A in self._children))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self._children))})"


class Compose(_Composite):
    """`Compose(A2, A1)(x) = A2(A1(x))`."""

    @property
    def complex_output(self) -> bool:  # type: ignore[override]
        # masked complex numbers are complex numbers
        return next((A.complex_output for A in self._children if not isinstance(A, Mask | Identity)), False)

    def _forward(self, x: Tensor) -> Tensor:
        for A in reversed(self._children):
            x = A(x)
        return x

    def _adjoint(self, y: Tensor) -> Tensor:
        for A in self._children:
            y = A.adjoint(y)
        return y

    def measured(self, y: Tensor) -> Tensor | None:
        # compute the shapes of intermediate results backwards, then propagate the mask of measured entries forwards
        data = [torch.zeros_like(y)]
        for A in self._children[:-1]:
            data.append(A.adjoint(data[-1]))
        measured: Tensor | None = None
        for A, out in zip(reversed(self._children), reversed(data), strict=True):
            own = A.measured(out)
            kept = None if measured is None else A.measured_outputs(measured)
            measured = own if kept is None else kept if own is None else own & kept
            measured = None if measured is None else measured.expand_as(out)
        return measured

    def measured_outputs(self, measured: Tensor) -> Tensor | None:
        kept: Tensor | None = measured
        for A in reversed(self._children):
            kept = None if kept is None else A.measured_outputs(kept)
        return kept

    def spectrum(self, precision: Tensor) -> Spectrum | None:
        # A₁ᵀ(A₂ᵀPA₂)A₁: each information must be diagonal in the measurements of the operator before
        for A in self._children[:-1]:
            outer = A.spectrum(precision)
            if outer is None or not isinstance(outer.basis, Entries):
                return None
            precision = outer.gains
        return self._children[-1].spectrum(precision)

    def implied_shape(self, y: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        largest = 0
        for A in self._children:
            y, numbers = A.implied_shape(y)
            largest = max(largest, numbers)
        return y, largest

    def resolve_axes(self, x: Tensor) -> Compose:
        resolved = []
        for A in reversed(self._children):
            resolved.append(A.resolve_axes(x))
            x = A[:1](x)
        return Compose(*reversed(resolved))


class Stack(_Composite):
    """Several measurements of the same x.

    When all have the same shape, y is `(n, k, *measurement)`, one entry of the second axis per operator. When they
    differ, `x_shape` (the shape of a sample) is needed to split y, and y is flat, `(n, m1 + m2 + ...)`.
    """

    def __init__(self, *operators: Operator, x_shape: tuple[int, ...] | None = None) -> None:
        super().__init__(*operators)
        self.x_shape = None if x_shape is None else tuple(x_shape)

    def config(self) -> dict[str, Any]:
        return {"x_shape": None if self.x_shape is None else list(self.x_shape)}

    @property
    def complex_output(self) -> bool:  # type: ignore[override]
        return all(A.complex_output for A in self._children) and self.x_shape is None

    def _forward(self, x: Tensor) -> Tensor:
        parts = [A(x) for A in self._children]
        if self.x_shape is not None:
            return torch.cat([part.flatten(1) for part in parts], 1)
        if len({tuple(part.shape) for part in parts}) > 1:
            shapes = ", ".join(str(tuple(part.shape[1:])) for part in parts)
            raise InputError(f"Stack: the parts measure different shapes ({shapes}); pass x_shape={tuple(x.shape[1:])}")
        return torch.stack(parts, 1)

    def _take_apart(self, y: Tensor) -> list[Tensor]:
        if self.x_shape is None:
            if y.ndim < 2 or y.shape[1] != len(self._children):
                k = len(self._children)
                raise InputError(
                    f"Stack of {k} operators needs y of shape (n, {k}, *measurement), got {tuple(y.shape)}: "
                    "np.stack(parts, 1). For parts of different shapes pass x_shape, and y flat"
                )
            return list(y.unbind(1))
        x = y.new_zeros(len(y), *self.x_shape)
        shapes = [tuple(A(x).shape[1:]) for A in self._children]
        sizes = [math.prod(shape) for shape in shapes]
        if y.ndim != 2 or y.shape[1] != sum(sizes):
            raise InputError(
                f"Stack measures {count_of(sum(sizes), 'number')} per observation, got y of shape {tuple(y.shape)}"
            )
        return [part.reshape(len(y), *shape) for part, shape in zip(y.split(sizes, 1), shapes, strict=True)]

    def _adjoint(self, y: Tensor) -> Tensor:
        parts = zip(self._children, self._take_apart(y), strict=True)
        return torch.stack([A.adjoint(part) for A, part in parts]).sum(0)

    def measured(self, y: Tensor) -> Tensor | None:
        parts = self._take_apart(y)
        masks = [A.measured(part) for A, part in zip(self._children, parts, strict=True)]
        if all(mask is None for mask in masks):
            return None
        full = [
            torch.ones_like(part, dtype=torch.bool) if mask is None else mask.expand_as(part)
            for mask, part in zip(masks, parts, strict=True)
        ]
        return self._put_together(full)

    def measured_outputs(self, measured: Tensor) -> Tensor | None:
        kept = [mask for A in self._children if (mask := A.measured_outputs(measured)) is not None]
        return self._put_together(kept) if len(kept) == len(self._children) else None

    def _put_together(self, masks: list[Tensor]) -> Tensor:
        return torch.stack(masks, 1) if self.x_shape is None else torch.cat([mask.flatten(1) for mask in masks], 1)

    def implied_shape(self, y: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        if self.x_shape is None:
            parts = [A.implied_shape((y[0], *y[2:])) for A in self._children]
            return parts[0][0], len(parts) * max(numbers for _, numbers in parts)
        if not all(isinstance(size, int) and size > 0 for size in self.x_shape):
            raise InputError(f"Stack: x_shape must be positive integers, got {self.x_shape}")
        x = (y[0], *self.x_shape)
        # a part may reduce an axis by a matrix over that axis
        return x, max(math.prod(x), max(self.x_shape, default=1) ** 2)

    def resolve_axes(self, x: Tensor) -> Stack:
        return Stack(*(A.resolve_axes(x) for A in self._children), x_shape=self.x_shape)


Operator.composition = Compose
