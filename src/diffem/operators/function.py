"""Any linear function as an operator, its adjoint by automatic differentiation."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import differentiable, own_modes
from ..core.shapes import require_event
from .base import Operator


class Function(Operator):
    """y = function(x, **parameters), linear in x and independent from sample to sample.

    The result of the function is converted to the dtype of x, in case it computes with constants of another dtype. If
    the function contains float32 constants and cannot compute in float64, it is evaluated in float32.
    Linearity is not verified here; use `operators.check(A, x_shape)`.

    Args:
        function: (n, *x_shape) → (n, *measurement). Written with differentiable torch operations.
        x_shape: The shape of a sample.
        parameters: Keyword arguments of the function. Tensors and arrays have a leading observation axis, and are
            sliced and moved with A; plain numbers are passed unchanged.
    """

    def __init__(self, function: Callable[..., Tensor], x_shape: tuple[int, ...], **parameters: Any) -> None:
        super().__init__()
        if not callable(function):
            raise InputError(f"Function: needs a callable, got {type(function).__name__}")
        if isinstance(x_shape, int) or not all(isinstance(size, int) and size > 0 for size in x_shape):
            raise InputError(f"Function: x_shape is the shape of a sample, such as (8, 8), got {x_shape!r}")
        self.function, self.x_shape = function, tuple(x_shape)
        self.numbers: dict[str, bool | int | float] = {}
        for name, value in parameters.items():
            if isinstance(value, np.ndarray | np.generic | Tensor) and value.ndim == 0:
                value = value.item()
            if isinstance(value, bool | int | float):
                self.numbers[name] = value
                continue
            tensor = torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value
            if not isinstance(tensor, Tensor):
                raise InputError(
                    f"Function: the parameter {name} must be a number, or a tensor with a leading observation axis, "
                    f"got {type(value).__name__}; put other constants into the function itself"
                )
            self._store(name, tensor, tensor.ndim - 1)

    def config(self) -> dict[str, Any]:
        return {"x_shape": list(self.x_shape), **({"numbers": self.numbers} if self.numbers else {})}

    def _forward(self, x: Tensor) -> Tensor:
        require_event(x, self.x_shape, "Function")
        try:
            y = self._evaluate(x, self._tensors)
        except RuntimeError as error:
            # some torch functions, such as convolutions, do not mix dtypes: constants inside the function decide
            if x.dtype != torch.float64 or not re.search("dtype|scalar type", str(error)):
                raise
            y = self._evaluate(
                x.float(), {k: t.float() if t.is_floating_point() else t for k, t in self._tensors.items()}
            )
        if not isinstance(y, Tensor) or y.ndim == 0 or len(y) != len(x) or y.is_complex():
            given = f"{y.dtype} {tuple(y.shape)}" if isinstance(y, Tensor) else type(y).__name__
            raise InputError(
                f"Function: the callable must return a real tensor with {len(x)} samples along its first axis, "
                f"got {given}"
            )
        return y.to(x.dtype)

    def _evaluate(self, x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return self.function(x, **{name: differentiable(t) for name, t in tensors.items()}, **self.numbers)

    def _adjoint(self, y: Tensor) -> Tensor:
        with own_modes(), torch.enable_grad():
            x = torch.zeros(len(y), *self.x_shape, dtype=y.dtype, device=y.device, requires_grad=True)
            out = self._forward(x)
            if out.shape != y.shape:
                raise InputError(
                    f"Function measures {tuple(out.shape[1:])} per observation, got y of shape {tuple(y.shape)}"
                )
            if not out.requires_grad:
                raise InputError(
                    "Function: the callable's result does not depend on x through differentiable operations"
                )
            (x_bar,) = torch.autograd.grad(out, x, y)
            return x_bar
