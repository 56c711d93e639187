"""The covariance of the noise, from a covariance, from standard deviations, or with levels that are unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.arrays import from_array
from ..core.counting import count_of
from ..core.errors import InputError
from ..linalg import Covariance, DenseCovariance, Diagonal, Isotropic, SimulatedNoise, UnknownNoise
from .arrays import as_tensor


def noise_covariance(sigma: Any, cov: Covariance | None, groups: Any, y: Tensor, measured: Tensor | None) -> Covariance:
    """Make the covariance of the noise of observations y `(n, *measurement)`; see `Observations`.

    Args:
        measured: Mask of the measured entries, broadcastable to y; None for all.

    Raises:
        InputError: If the arguments contradict each other or do not fit y.
    """
    if (sigma is None) == (cov is None):
        given = "neither" if sigma is None else "both"
        raise InputError(
            f"the noise must be given either as sigma=... or as cov=..., got {given}; sigma='learn' estimates the level"
        )
    if isinstance(sigma, str):
        cov = unknown_noise(sigma, groups, y)
    elif groups is not None:
        raise InputError("groups need sigma='learn': they label the values that share an unknown noise level")
    elif sigma is not None:
        cov = independent_noise(sigma, y, measured)
    if not isinstance(cov, Covariance):
        raise InputError(
            f"cov must be a diffem.linalg covariance, got {type(cov).__name__}; pass the standard deviation of "
            "independent noise, the square root of its variance, as sigma"
        )
    cov = cov.bind(y.ndim - 1)
    if cov.batch is not None and cov.batch != len(y):
        raise InputError(
            f"y holds {count_of(len(y), 'observation')}, but the noise covariance is given for {cov.batch}"
        )
    if isinstance(cov, UnknownNoise):
        if cov.is_per_value and cov.groups.shape != y.shape[1:]:
            raise InputError(
                f"groups of shape {tuple(cov.groups.shape)} do not fit a measurement of shape {tuple(y.shape[1:])}"
            )
        return cov
    try:
        (cov if cov.batch is None else cov[:1]).to(y).matvec(y[:1])
    except RuntimeError as error:
        raise InputError(f"the noise covariance {cov} does not fit y of shape {tuple(y.shape)}: {error}") from None
    return in_dtype_of(cov, y)


def simulated_noise(sigma: Any, cov: Covariance | None, groups: Any) -> SimulatedNoise:
    """Return the placeholder for the covariance of a `Channel`, which simulates its noise."""
    if not (sigma is None and groups is None and (cov is None or isinstance(cov, SimulatedNoise))):
        raise InputError("a Channel simulates its noise: leave out sigma, cov and groups")
    return SimulatedNoise()


def in_dtype_of(cov: Covariance, y: Tensor) -> Covariance:
    """Convert the covariance to the dtype of y `(n, *measurement)`.

    Raises InputError if a variance becomes 0 or infinite.
    """
    if isinstance(cov, SimulatedNoise):
        return cov
    small, large = torch.finfo(y.dtype).tiny, torch.finfo(y.dtype).max
    variances = cov.diagonal(tuple(y.shape[1:]))
    lowest, highest = float(variances.min()), float(variances.max())
    cov = cov.to(y)
    if not highest <= large:
        raise InputError(
            f"the noise has a variance of {highest:.1e}, above the largest number of {y.dtype} ({large:.1e}): divide y "
            "and the noise level by a constant (float64 helps only without networks, which compute in float32); values "
            "that were not measured are marked by a mask, or by NaN if there is no operator"
        )
    is_exact = isinstance(cov, DenseCovariance) and lowest <= 0  # not positive definite in any precision: see below
    if not is_exact and not float(cov.diagonal(tuple(y.shape[1:])).min()) >= small:
        raise InputError(
            f"the noise has a variance of {lowest:.1e}, below the smallest number that {y.dtype} resolves "
            f"({small:.1e}): multiply y and the noise level by a constant (float64 helps only without networks, "
            "which compute in float32), or correct the noise level"
        )
    if isinstance(cov, DenseCovariance) and not (cov.eigenvalue_floor() > 0).all():
        raise InputError(
            "the noise covariance must be positive definite: some combination of the measured values has variance 0 "
            f"(in {y.dtype}), as if it were measured without noise"
        )
    return cov


def independent_noise(sigma: Any, y: Tensor, measured: Tensor | None) -> Covariance:
    """Make the covariance of independent noise.

    Args:
        sigma: A number; `(n,)`, one per observation; or a tensor that broadcasts to one measurement, `(*measurement)`
            (one per column of a table), or to all, `(n, *measurement)`. If there are as many observations as columns,
            `(n,)` is one per observation; pass `(1, n)` for one per column.
        y: The observations, `(n, *measurement)`.
        measured: Mask of the measured entries. Where it is False, a sigma of the shape of y may have any value, and a
            sigma of the shape of one measurement where it is False for all observations.
    """
    value = as_tensor(sigma, "sigma")
    if value.is_complex():
        raise InputError(f"sigma must be real, got {value.dtype}")
    value = value.to(device=y.device, dtype=torch.float64)
    if value.shape == y.shape and measured is not None:
        value = _without_unmeasured(value, measured.expand_as(value))
    elif value.shape == y.shape[1:] and value.ndim > 1 and measured is not None:
        value = _without_unmeasured(value, measured.any(0).expand_as(value))
    if not ((value > 0) & torch.isfinite(value)).all():
        bad = value[~((value > 0) & torch.isfinite(value))]
        advice = "; where nothing was measured, y must be NaN too, or masked" if value.ndim >= y.ndim - 1 > 0 else ""
        raise InputError(f"sigma must be positive and finite, got {bad.reshape(-1)[:4].tolist()}{advice}")
    if value.ndim == 0 or (value.ndim == 1 and len(value) == len(y)):
        return Isotropic(value**2)
    shape = tuple(value.shape)
    padded = (1,) * (y.ndim - value.ndim) + shape
    if value.ndim > y.ndim or any(s not in (1, size) for s, size in zip(padded, y.shape, strict=True)):
        raise InputError(
            f"sigma must be one number or {len(y)} of them, got shape {shape}, which broadcasts neither to a "
            f"measurement {tuple(y.shape[1:])} nor to all of them {tuple(y.shape)}"
        )
    variances = value.reshape(padded).square()
    if padded[0] == 1:
        return Diagonal(variances[0].expand(y.shape[1:]).contiguous())
    return Diagonal(variances.expand(y.shape).contiguous())


def _without_unmeasured(value: Tensor, measured: Tensor) -> Tensor:
    """Replace unmeasured values that are no standard deviations by the largest measured value.

    These are values like NaN, and those whose square is 0 or infinite in float32, to which `fit` converts.
    """
    variance, numbers = value.square(), torch.finfo(torch.float32)
    unused = ~measured & ~((value > 0) & (variance >= numbers.tiny) & (variance <= numbers.max))
    return torch.where(unused, value[measured].max(), value) if unused.any() and measured.any() else value


def unknown_noise(word: str, groups: Any, y: Tensor) -> UnknownNoise:
    """Noise whose levels `fit` estimates, one per group.

    Args:
        word: "learn".
        groups: Labels `(n,)`, one per observation; labels that broadcast to one measurement; "columns", one level per
            index of the last axis; or None, one level for all.
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
    try:
        labels = (from_array(groups) if isinstance(groups, np.ndarray) else torch.as_tensor(groups)).to(y.device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"groups must be whole numbers, the label of each group, got {groups!r:.80}") from None
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
