"""Any linear function as an operator, its adjoint by automatic differentiation.

Parameters that are not known exactly, such as the width of a blur, are marked by `learn=`; `diffem.fit` estimates them
together with the prior (`learned.py`, `priors/parameter_scoring.py`).
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import default_modes, differentiable
from ..core.shapes import require_event
from .base import Operator
from .parameters import separated


class Function(Operator):
    """y = function(x, **parameters), linear in x and independent from sample to sample.

    The result of the function is converted to the dtype of x, in case it computes with constants of another dtype. If
    the function contains float32 constants and cannot compute in float64, it is evaluated in float32.
    `Observations` check linearity on two samples; `operators.check(A, x_shape)` is thorough.

    Args:
        function: (n, *x_shape) → (n, *measurement). Written with differentiable torch operations.
        x_shape: The shape of a sample.
        learn: Initial values of the parameters that `fit` estimates, by name: numbers, or arrays of any shape. The
            function receives each as a tensor of that shape and must be differentiable in it.
        groups: `(n,)`. Whole numbers 0 … G−1, the group of each observation, if every group has its own values of the
            learned parameters; or a mapping from the names of some of them to such labels. The function receives these
            parameters with a leading observation axis.
        parameters: Other keyword arguments of the function. Tensors and arrays have a leading observation axis, and are
            sliced and moved with A; plain numbers are passed unchanged.
    """

    def __init__(
        self,
        function: Callable[..., Tensor],
        x_shape: tuple[int, ...],
        *,
        learn: Mapping[str, Any] | None = None,
        groups: Any = None,
        **parameters: Any,
    ) -> None:
        super().__init__()
        if not callable(function):
            raise InputError(f"Function: needs a callable, got {type(function).__name__}")
        if isinstance(x_shape, int) or not all(isinstance(size, int) and size > 0 for size in x_shape):
            raise InputError(f"Function: x_shape is the shape of a sample, such as (8, 8), got {x_shape!r}")
        self.function, self.x_shape = function, tuple(x_shape)
        self.learns: tuple[str, ...] = ()  # the names of the parameters that `fit` estimates
        self._labelled: dict[str, str] = {}  # names of parameters with a value per group → names of their labels
        self.any_dtype: frozenset[str] = frozenset()  # learned parameters are kept in float64
        self.numbers, tensors = separated(parameters, "Function")
        for name, tensor in tensors.items():
            self._store(name, tensor, tensor.ndim - 1)
        if learn is not None or groups is not None:
            self._mark(learn, groups, parameters)

    def _mark(self, learn: Any, groups: Any, parameters: Mapping[str, Any]) -> None:
        """Store the parameters to learn: `(*shape)` each, or `(G, *shape)` with labels `(n,)`."""
        if not isinstance(learn, Mapping) or not learn or not all(isinstance(name, str) for name in learn):
            raise InputError(f"Function: learn must map names of parameters to initial values, got {learn!r}")
        if twice := [name for name in learn if name in parameters]:
            raise InputError(f"Function: {', '.join(twice)} is given both as a known parameter and in learn")
        labels = groups if isinstance(groups, Mapping) else dict.fromkeys(learn, groups)
        if unknown := [name for name in labels if name not in learn]:
            raise InputError(f"Function: groups names {', '.join(map(str, unknown))}, which is not in learn")
        for name, value in learn.items():
            first = first_value(name, value)
            if (given := labels.get(name)) is None:
                self._store(name, first, first.ndim)
                continue
            group = group_labels(given)
            self._labelled[name] = f"group of {name}"
            self._store(self._labelled[name], group, 0)
            values = first.expand(int(group.max()) + 1, *first.shape).contiguous()
            self._store(name, values, values.ndim)
        self.learns = tuple(learn)
        self.any_dtype = frozenset(learn)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        new = super().to(*args, **kwargs)
        for name in self.any_dtype:
            new._tensors[name] = self._tensors[name].to(new._tensors[name].device)
        return new

    def with_values(self, values: Mapping[str, Tensor], learns: tuple[str, ...] = ()) -> Self:
        """Replace parameters to learn by known values. Gradients of the values are kept.

        Args:
            values: `(*shape)`, or `(G, *shape)` for a parameter with a value per group, by name.
            learns: The names of the parameters that remain to be estimated.

        Raises:
            InputError: If a value has another shape, or there is none for a group.
        """
        new = copy.copy(self)
        new._tensors, new.learns = dict(self._tensors), learns
        for name, value in values.items():
            if name not in self.learns:
                raise InputError(f"Function learns {', '.join(self.learns) or 'no parameter'}, got a value for {name}")
            old, grouped = self._tensors[name], name in self._labelled
            fits = value.ndim == old.ndim and value.shape[grouped:] == old.shape[grouped:]
            if not fits or (grouped and len(value) < len(old)):
                raise InputError(
                    f"Function: {name} has shape {tuple(old.shape)}{' (the first axis: groups)' if grouped else ''}, "
                    f"got a value of shape {tuple(value.shape)}"
                )
            new._tensors[name] = value.to(old)
        return new

    def labels(self, name: str) -> Tensor | None:
        """The group of each observation `(n,)` for a learned parameter with a value per group; otherwise None."""
        return self._tensors[self._labelled[name]] if name in self._labelled else None

    def config(self) -> dict[str, Any]:
        config: dict[str, Any] = {"x_shape": list(self.x_shape)}
        config |= {"numbers": self.numbers} if self.numbers else {}
        return config | ({"learns": list(self.learns)} if self.learns else {})

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
                f"Function: the callable must return a real tensor with {count_of(len(x), 'sample')} along its first "
                f"axis, got {given}"
            )
        return y.to(x.dtype)

    def _evaluate(self, x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        hidden = set(self._labelled.values())
        given = {name: differentiable(t) for name, t in tensors.items() if name not in hidden}
        for name, labels in self._labelled.items():
            given[name] = given[name][tensors[labels]]
        given |= {name: given[name].to(x.dtype) for name in self.any_dtype}
        return self.function(x, **given, **self.numbers)

    def _adjoint(self, y: Tensor) -> Tensor:
        with default_modes(), torch.enable_grad():
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


def first_value(name: str, value: Any) -> Tensor:
    """The initial value of a learned parameter as a tensor. Raises InputError unless it is finite and real."""
    try:
        tensor = value if isinstance(value, Tensor) else torch.from_numpy(np.array(value))  # numbers are float64 there
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"Function: learn[{name!r}] must be a number or an array, got {value!r}") from None
    if tensor.dtype == torch.bool or tensor.is_complex() or not torch.isfinite(tensor).all():
        raise InputError(f"Function: learn[{name!r}] must be real and finite, got {tensor.dtype} {tensor.tolist()}")
    return tensor.double()


def group_labels(groups: Any) -> Tensor:
    """The group of each observation, `(n,)`, as whole numbers. Raises InputError for anything else."""
    labels = torch.as_tensor(groups)
    if labels.ndim != 1 or labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise InputError(
            f"Function: groups must be whole numbers (n,), one per observation, got {labels.dtype} "
            f"{tuple(labels.shape)}"
        )
    if len(labels) == 0 or int(labels.min()) < 0:
        raise InputError("Function: groups must be numbered from 0")
    return labels.long()
