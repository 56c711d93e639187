"""The kinds of covariance by name, and conversion of arguments to covariances."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from ..core.errors import InputError
from .covariance import Covariance, Diagonal, Isotropic
from .dense import DenseCovariance
from .low_rank import LowRank
from .unknown import UnknownNoise

COVARIANCES: dict[str, type[Covariance]] = {
    "isotropic": Isotropic,
    "diagonal": Diagonal,
    "low_rank": LowRank,
    "dense": DenseCovariance,
    "unknown": UnknownNoise,
}


def as_covariance(value: Any, event_shape: tuple[int, ...], owner: str) -> Covariance:
    """Return a covariance for a covariance object or a dense matrix over the flattened event."""
    size = math.prod(event_shape)
    if isinstance(value, Covariance):
        return value.bind(len(event_shape))
    if isinstance(value, Tensor) and value.shape == (size, size):
        return DenseCovariance(value)
    shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
    raise InputError(
        f"{owner}: cov must be a Covariance or a ({size}, {size}) matrix over samples of shape {event_shape}, "
        f"got {shape}"
    )
