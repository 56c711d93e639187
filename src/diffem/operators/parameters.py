"""Named parameters of an operator that a user's function receives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from ..core.arrays import from_array
from ..core.errors import InputError

Number = bool | int | float


def separated(parameters: Mapping[str, Any], owner: str) -> tuple[dict[str, Number], dict[str, Tensor]]:
    """Separate parameters into numbers, and tensors with a leading observation axis.

    Args:
        parameters: Numbers, arrays and tensors by name.
        owner: The operator, for error messages.
    """
    numbers: dict[str, Number] = {}
    tensors: dict[str, Tensor] = {}
    for name, value in parameters.items():
        if isinstance(value, np.ndarray | np.generic | Tensor) and value.ndim == 0:
            value = value.item()
        if isinstance(value, bool | int | float):
            numbers[name] = value
            continue
        tensor = from_array(value).contiguous() if isinstance(value, np.ndarray) else value
        if not isinstance(tensor, Tensor):
            raise InputError(
                f"{owner}: the parameter {name} must be a number, or a tensor with a leading observation axis, "
                f"got {type(value).__name__}; put other constants into the function itself"
            )
        tensors[name] = tensor
    return numbers, tensors
