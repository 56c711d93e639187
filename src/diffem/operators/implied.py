"""How large the samples are that an operator implies, from its settings and the shape of y alone: nothing is computed.

An operator read from a file may say "a window of 8×8 in an image of 10⁶×10⁶"; whoever reads it asks here before allocating anything.
"""

from __future__ import annotations

import math

from ..core.errors import InputError
from .base import Operator
from .compose import Compose, Stack
from .crop import Crop
from .dense import Dense
from .resample import Downsample

Shape = tuple[int, ...]


def implied(A: Operator, y: Shape) -> tuple[Shape, int]:
    """The shape of Aᵀy for y of shape `(n, *measurement)`, and the numbers in the largest tensor on the way."""
    if isinstance(A, Compose):
        largest = 0
        for part in A.children():
            y, numbers = implied(part, y)
            largest = max(largest, numbers)
        return y, largest
    if isinstance(A, Stack):
        if A.x_shape is None:
            inner = (y[0], *y[2:])
            parts = [implied(part, inner) for part in A.children()]
            return parts[0][0], len(parts) * max(numbers for _, numbers in parts)
        if not all(isinstance(size, int) and size > 0 for size in A.x_shape):
            raise InputError(f"Stack: x_shape must be positive whole numbers, got {A.x_shape}")
        x = (y[0], *A.x_shape)
        # a part may reduce an axis, by a matrix over that axis
        return x, max(math.prod(x), max(A.x_shape, default=1) ** 2)
    if isinstance(A, Crop):
        x = (*y[:-2], *A.image)
    elif isinstance(A, Downsample):
        x = (*y[:-2], *(size * A.factor for size in y[-2:]))
        return x, max(math.prod(x), max(x[-2:]) ** 2)
    elif isinstance(A, Dense):
        x = (y[0], *A.event_shape)
    else:
        x = y  # of its size, or a few times smaller
    return x, math.prod(x)
