"""A dense matrix, for small problems and tests."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from .base import Operator, numeric


class Dense(Operator):
    """y = matrix · x over the flattened sample.

    Args:
        matrix: (m, N) for all observations, or (n, m, N) with one matrix per observation. A complex matrix maps real
            views `(n, N, 2)` to `(n, m, 2)`.
        event_shape: The shape of a sample. Default: (N,), or (N, 2) for a complex matrix.
    """

    def __init__(self, matrix: Tensor, event_shape: tuple[int, ...] | None = None) -> None:
        super().__init__()
        matrix = numeric(matrix, "Dense: matrix")
        if not isinstance(matrix, Tensor) or not (matrix.is_floating_point() or matrix.is_complex()):
            given = matrix.dtype if isinstance(matrix, Tensor) else type(matrix).__name__
            raise InputError(
                f"Dense: matrix must be a floating-point or complex tensor of shape (m, N) or (n, m, N), got {given}"
            )
        if matrix.ndim not in (2, 3) or matrix.numel() == 0:
            raise InputError(f"Dense: matrix must have shape (m, N) or (n, m, N), got {tuple(matrix.shape)}")
        self.complex_output = matrix.is_complex()
        columns = matrix.shape[-1] * (2 if self.complex_output else 1)
        default = (matrix.shape[-1], 2) if self.complex_output else (matrix.shape[-1],)
        self.event_shape = tuple(event_shape) if event_shape is not None else default
        if math.prod(self.event_shape) != columns:
            raise InputError(
                f"Dense: a matrix of shape {tuple(matrix.shape)} acts on {count_of(columns, 'number')}, but "
                f"event_shape {self.event_shape} has {math.prod(self.event_shape)}"
            )
        # a complex matrix is stored as its real view, so that `to` and saving need no special case
        if matrix.is_complex():
            self._store("matrix", torch.view_as_real(matrix.resolve_conj()), 3)
        else:
            self._store("matrix", matrix, 2)

    def config(self) -> dict[str, Any]:
        return {"event_shape": list(self.event_shape)}

    def tensors(self) -> dict[str, Tensor]:
        matrix = self._tensors["matrix"]
        return {"matrix": torch.view_as_complex(matrix) if self.complex_output else matrix}

    def implied_shape(self, y: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        x = (y[0], *self.event_shape)
        return x, math.prod(x)

    def _matrix(self) -> Tensor:
        matrix = self._read("matrix")
        return torch.view_as_complex(matrix) if self.complex_output else matrix

    def _forward(self, x: Tensor) -> Tensor:
        if tuple(x.shape[1:]) != self.event_shape:
            raise InputError(
                f"Dense acts on samples of shape {self.event_shape}, got {tuple(x.shape[1:])}; pass event_shape=... to "
                "let the matrix act on another shape of as many numbers"
            )
        return self._product(self._matrix(), x.flatten(1))

    def _adjoint(self, y: Tensor) -> Tensor:
        rows = self._tensors["matrix"].shape[-3 if self.complex_output else -2]
        expected = (rows, 2) if self.complex_output else (rows,)
        if tuple(y.shape[1:]) != expected:
            raise InputError(f"Dense measures vectors of shape {expected}, got y of shape {tuple(y.shape)}")
        return self._product(self._matrix().mH, y.flatten(1)).reshape(len(y), *self.event_shape)

    def _product(self, matrix: Tensor, v: Tensor) -> Tensor:
        if self.complex_output:
            v = torch.view_as_complex(v.reshape(len(v), -1, 2))
        if len(matrix) == 1:
            out = v @ matrix[0].T
        elif matrix[0].numel() <= 64:
            # many tiny products: multiplying and summing is much faster than a batched matrix product
            out = (matrix * v.unsqueeze(1)).sum(-1)
        else:
            out = (matrix @ v.unsqueeze(-1)).squeeze(-1)
        return torch.view_as_real(out) if self.complex_output else out
