"""The covariance of the noise from its standard deviations: one, one per observation, or one per measured value."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..linalg import Covariance, Diagonal, Isotropic, UnknownNoise
from .arrays import as_tensor


def independent_noise(sigma: Any, y: Tensor) -> Covariance:
    """The covariance of independent noise.

    Args:
        sigma: A number; `(n,)`, one per observation; or what broadcasts to one measurement, `(*measurement)` (one per column of a table),
            or to all, `(n, *measurement)`. If there are as many observations as columns, `(n,)` is one per observation: give `(1, n)` for
            one per column.
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
            f"sigma must be one number or {len(y)} of them, got shape {shape}, which does not broadcast to a measurement "
            f"{tuple(y.shape[1:])} or to all of them {tuple(y.shape)} either"
        )
    variances = value.reshape(padded).square()
    if padded[0] == 1:
        return Diagonal(variances[0].expand(y.shape[1:]).contiguous())
    return Diagonal(variances.expand(y.shape).contiguous())


def unknown_noise(word: str, groups: Any, y: Tensor) -> UnknownNoise:
    """Noise whose levels `fit` estimates, one per group.

    Args:
        word: "learn".
        groups: Labels `(n,)`, one per observation; labels that broadcast to one measurement; "columns", one level per index of the last
            axis; or None, one level for all.
        y: The observations, `(n, *measurement)`.

    Raises:
        InputError: If sigma is another word, or the labels have another shape or are not whole numbers.
    """
    if word != "learn":
        raise InputError(f"sigma must be a number, an array or 'learn', got {word!r}")
    if groups is None:
        return UnknownNoise(torch.zeros((), dtype=torch.int64, device=y.device))
    if isinstance(groups, str):
        if groups != "columns":
            raise InputError(f"groups must be labels or 'columns', got {groups!r}")
        groups = torch.arange(y.shape[-1], device=y.device)
        return UnknownNoise(groups.expand(y.shape[1:]).contiguous(), per_value=True)
    labels = torch.as_tensor(groups).to(y.device)
    if labels.is_complex() or not bool((labels == labels.double().floor()).all()):
        raise InputError(f"groups must be whole numbers, the label of each group, got {labels.dtype}")
    used, labels = labels.unique(return_inverse=True)
    if labels.shape == (len(y),):
        return UnknownNoise(labels, len(used))
    padded = (1,) * (y.ndim - 1 - labels.ndim) + tuple(labels.shape)
    if labels.ndim >= y.ndim or any(s not in (1, size) for s, size in zip(padded, y.shape[1:], strict=True)):
        raise InputError(
            f"groups must hold one label per observation, ({len(y)},), or labels that broadcast to a measurement "
            f"{tuple(y.shape[1:])}, got shape {tuple(labels.shape)}"
        )
    return UnknownNoise(labels.reshape(padded).expand(y.shape[1:]).contiguous(), len(used), per_value=True)
