"""The covariance of the noise from its standard deviations: one, one per observation, or one per measured value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..linalg import Covariance, Diagonal, Isotropic
from .arrays import as_tensor


def independent_noise(sigma: Any, y: Tensor) -> Covariance:
    """Make the covariance of independent noise.

    Args:
        sigma: A number; `(n,)`, one per observation; or a tensor that broadcasts to one measurement, `(*measurement)`
            (one per column of a table), or to all, `(n, *measurement)`. If there are as many observations as columns,
            `(n,)` is one per observation; pass `(1, n)` for one per column.
        y: The observations, `(n, *measurement)`.
    """
    value = as_tensor(sigma, "sigma")
    if value.is_complex():
        raise InputError(f"sigma must be real, got {value.dtype}")
    value = value.to(device=y.device, dtype=torch.float64)
    if not ((value > 0) & torch.isfinite(value)).all():
        bad = value[~((value > 0) & torch.isfinite(value))]
        raise InputError(f"sigma must be positive and finite, got {bad.reshape(-1)[:4].tolist()}")
    if value.ndim == 0 or (value.ndim == 1 and len(value) == len(y)):
        return Isotropic(value**2)
    shape = tuple(value.shape)
    padded = (1,) * (y.ndim - value.ndim) + shape
    if value.ndim > y.ndim or any(s not in (1, size) for s, size in zip(padded, y.shape, strict=True)):
        raise InputError(
            f"sigma must be one number or {len(y)} of them, got shape {shape}, which does not broadcast to a "
            "measurement "
            f"{tuple(y.shape[1:])} or to all of them {tuple(y.shape)} either"
        )
    variances = value.reshape(padded).square()
    if padded[0] == 1:
        return Diagonal(variances[0].expand(y.shape[1:]).contiguous())
    return Diagonal(variances.expand(y.shape).contiguous())
