"""Observations in float32, the precision that networks are trained and evaluated in."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from ..core.errors import CastWarning, InputError
from ..linalg import UnknownNoise
from .arrays import try_operator
from .batches import in_parts
from .lazy import LazyObservations
from .observations import Observations

EPSILON = 2.0**-24  # relative error of a number that is rounded to float32, at most
LOSSLESS = 0.01  # rounding errors below this multiple of the noise do not matter: they add 0.01 % to its variance


def in_float32(obs: Observations) -> Observations:
    """Convert observations to float32; returns the same object if they are.

    Lazy observations are converted when they are read.

    Raises:
        InputError: If the noise vanishes in float32, or an operator does not compute in it.
    """
    first = obs[:1]
    if first.y.dtype == torch.float32:
        return obs
    one = first.to(torch.float32)
    try:
        x, seen = try_operator(one.A, one.y)
    except InputError as error:
        raise InputError(
            f"networks compute in float32, and these {first.y.dtype} observations cannot be converted: {error}"
        ) from None
    assert x.dtype == seen.dtype == torch.float32
    if isinstance(obs, LazyObservations):
        return obs.changed(lambda read: read.to(torch.float32), "float32", lambda A: A.to(torch.float32))
    return obs.to(torch.float32)


def rounding(obs: Observations) -> float:
    """The largest rounding error of a measured value in float32, in standard deviations of its noise.

    0 if the noise level is unknown.
    """
    if isinstance(obs[:1].cov, UnknownNoise):
        return 0.0
    largest = 0.0
    for part in in_parts(obs):  # unmeasured values are 0
        ratio = EPSILON * part.y.abs() / part.cov.diagonal(tuple(part.y.shape[1:])).sqrt()
        largest = max(largest, float(ratio.max()))
    return largest


def lossy(obs: Observations) -> str | None:
    """Warning if observations lose precision in float32; None if their noise is far above the rounding errors."""
    if obs[:1].y.dtype == torch.float32 or (size := rounding(obs)) <= LOSSLESS:
        return None
    return (
        "networks compute in float32, and rounding changes the observations by up to "
        f"{size:.2g} standard deviations of their noise: subtract an offset from y, or check sigma"
    )


def in_precision_of(mean: Tensor, obs: Observations) -> Observations:
    """Convert float64 observations (the default of NumPy) for a prior in float32; return others unchanged.

    Warns if the rounding errors are not far below the noise.
    """
    if (obs.y.dtype, mean.dtype) != (torch.float64, torch.float32):
        return obs
    if (text := lossy(obs)) is not None:
        warnings.warn(text, CastWarning, stacklevel=5)
    return obs.to(torch.float32)


def cast_note(obs: Observations) -> str | None:
    """Note of a run about the precision of its observations; None if they are not converted."""
    dtype = obs[:1].y.dtype
    if dtype == torch.float32:
        return None
    return f"the observations are {str(dtype).removeprefix('torch.')}; the run converts them to float32"
