"""Checks of the observations before a run: mistakes that would otherwise show only in the results, or not at all."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.randomness import Stream
from ..observations import Observations
from ..observations.batches import in_parts
from ..observations.features import is_simulated
from ..observations.levels import level_count
from ..observations.precision import lossy
from ..observations.scale import spread
from ..operators import Channel, Identity, Mask, OperatorError, check
from ..operators.learned import derivatives, is_learned, learned_parameters, positions
from ..operators.user_check import has_function
from ..priors.parameters import MOST, with_first_values

FAR = 5.0  # warn if the root mean square of the means exceeds this multiple of that of the standard deviations
UNEQUAL = 20.0  # warn above this ratio of the largest to the smallest standard deviation of the columns
FEWEST = 16  # warn if there are fewer observations
NUMBERS = 1 << 20  # values per part
LARGEST = 1e17  # largest measured value: networks compute in float32, in which squares overflow above 1.8e19
LEARNABLE = 512  # largest number of values in a sample, if parameters of the operator are learned
DIFFERENCE = 1e-4  # change of a parameter, relative to its size, by which derivatives are checked
DERIVATIVE = 0.02  # largest relative error of a derivative; a function may compute in float32


def require_linear(obs: Observations) -> None:
    """Raise an `InputError` if a user-defined operator is not linear, judged by the first two observations."""
    few = obs[:2]
    if not has_function(few.A):
        return
    try:
        dtype = None if few.y.dtype == torch.float64 else few.y.dtype
        check(few.A, obs.x_shape, dtype=dtype, device=few.y.device)
    except OperatorError as error:
        raise InputError(f"the operator of the observations cannot be used:\n{error}") from None


def require_signal(obs: Observations) -> None:
    """Raise an `InputError` if A x is 0 for every observation, as with a matrix or a kernel of zeros."""
    if is_simulated(obs) or isinstance(obs[:1].A, Mask | Identity):
        return
    stream = Stream(0, "signal")
    for part in itertools.chain([obs[:2]], in_parts(obs)):
        x = stream.normal(torch.arange(len(part), device=part.y.device), obs.x_shape, dtype=part.y.dtype)
        if bool((part.A(x) != 0).any()):
            return
    raise InputError(
        "the operators measure nothing: A x is 0 for every x and every observation. Check the matrix, kernel, mask or "
        "function of A"
    )


def require_range(obs: Observations) -> None:
    """Raise an `InputError` if values are as large as the fill values of missing data in netCDF files."""
    if is_simulated(obs):
        return
    largest = max(float(part.y.abs().max()) for part in spread(obs))  # unmeasured values are 0
    if not largest < LARGEST:
        raise InputError(
            f"y holds measured values up to {largest:.2g}, too large for networks, which compute in float32. Replace "
            "fill values of missing data by NaN, or exclude them by the mask of the operator; divide other data and "
            "their noise level by a constant"
        )


def require_features(obs: Observations) -> None:
    """Raise an `InputError` if the features or the estimate of a channel are not finite for some observation."""
    if not is_simulated(obs):
        return
    start = 0
    for part in in_parts(obs):
        assert isinstance(part.A, Channel)
        try:
            part.A.features(part.y)
            part.A.estimate(part.y)
        except InputError as error:
            raise InputError(f"in the observations from {start} to {start + len(part) - 1}: {error}") from None
        start += len(part)


def require_learnable(obs: Observations) -> None:
    """Raise an `InputError` if parameters that `fit` is to learn cannot be learned from these observations.

    The derivatives of A x by the parameters are compared with differences, on the first two observations.
    """
    few = obs[:2]
    if not is_learned(few.A):
        return
    names, size = ", ".join(learned_parameters(few.A)), math.prod(obs.x_shape)
    if size > LEARNABLE:
        raise InputError(
            f"learn: {names}: samples may have at most {LEARNABLE} numbers, these have {size}. Learn the parameters "
            "from windows of the data or at a lower resolution, and pass the result to Function as known parameters"
        )
    if level_count(obs):
        raise InputError(
            f"learn: {names}: the noise level is unknown too (sigma='learn'), but a run can estimate only one of the "
            "two: pass sigma as a number"
        )
    numbers = sum(parameter.value.numel() for parameter in learned_parameters(few.A).values())
    if numbers > MOST:
        raise InputError(f"learn: {names}: at most {MOST} numbers can be learned, these are {numbers}")
    _require_derivatives(few.to(torch.float64))


def _require_derivatives(obs: Observations) -> None:
    x = Stream(0, "learnable").normal(torch.arange(len(obs), device=obs.y.device), obs.x_shape, dtype=torch.float64)
    try:
        y, derivative = derivatives(obs.A, x)
    except RuntimeError as error:
        names = ", ".join(learned_parameters(obs.A))
        raise InputError(f"learn: A x cannot be differentiated with respect to {names}: {error}") from None
    theta = torch.cat([p.value.flatten() for p in learned_parameters(obs.A).values()])
    if not bool(torch.isfinite(y).all() and torch.isfinite(derivative).all()):
        raise InputError(f"learn: A x or its derivatives are not finite at the initial values {theta.tolist()}")
    place, before = positions(obs.A, len(obs)), 0
    for name, parameter in learned_parameters(obs.A).items():
        for q in range(before, before + parameter.entries):
            _require_derivative(name, obs, x, theta, place[:, q], derivative[q])
        before += parameter.entries


def _require_derivative(
    name: str, obs: Observations, x: Tensor, theta: Tensor, place: Tensor, derivative: Tensor
) -> None:
    """Compare one derivative `(n, *measurement)` with a difference."""
    h = DIFFERENCE * max(1.0, float(theta[place].abs().max()))
    moved = torch.zeros_like(theta).index_fill(0, place, h)
    ends = [with_first_values(obs, theta + sign * moved).A(x) for sign in (1, -1)]
    expected = (ends[0] - ends[1]) / (2 * h)
    size = float(expected.norm())
    if float(derivative.norm()) == 0 and size == 0:
        raise InputError(f"learn: A x does not depend on {name} at its initial value")
    if not float((derivative - expected).norm()) <= DERIVATIVE * size:
        raise InputError(
            f"learn: the derivative of A x with respect to {name} is wrong: automatic differentiation gives a norm of "
            f"{float(derivative.norm()):.3g}, finite differences of A x give {size:.3g}. Parts of the function may be "
            "rounded, detached from the graph, or computed in numpy"
        )


def data_warnings(obs: Observations, images: bool) -> list[str]:
    """Return warnings about properties of the observations that are probably mistakes.

    Args:
        images: Whether the network treats samples as images, (channels, height, width).
    """
    warnings = [] if (text := lossy(obs)) is None else [text]
    if len(obs) < FEWEST:
        warnings.append(
            f"y holds {count_of(len(obs), 'observation')} of samples of shape {obs.x_shape}. A prior is learned from "
            "hundreds; the first axis of y counts them"
        )
    if images and (text := channels_last_warning(obs.x_shape)) is not None:
        warnings.append(text)
    if isinstance(obs[:1].A, Mask | Identity):
        warnings += scale_warnings(obs)
    return warnings


def channels_last_warning(shape: tuple[int, ...]) -> str | None:
    """Return a warning if the channels of images are probably the last axis; otherwise None."""
    if len(shape) != 3 or shape[-1] not in (3, 4) or shape[0] <= 4:
        return None
    return (
        f"the samples have shape {shape}, which is read as (channels, height, width): {shape[0]} channels of "
        f"{shape[1]}×{shape[2]} pixels. If the channels come last, move them: samples of shape "
        f"{(shape[-1], *shape[:2])}, such as y.transpose(0, 3, 1, 2) of a NumPy array"
    )


def scale_warnings(obs: Observations) -> list[str]:
    """Return warnings about values that are never measured, far from zero, or of very different size.

    The operators must measure entries of x.
    """
    count, mean, std = entry_moments(obs)
    if not bool((count > 1).any()):
        return []
    warnings = []
    if bool((count == 0).any()):
        places = [tuple(place) for place in (count == 0).nonzero().tolist()]
        indices = ", ".join(str(place[0]) if len(place) == 1 else str(place) for place in places[:4])
        indices += ", …" if len(places) > 4 else ""
        warnings.append(
            f"no observation measures {len(places)} of the {count_of(count.numel(), 'value')} of x (index {indices}): "
            "nothing can be learned about them; leave them out if that is not meant"
        )
    repeated = count > 1
    offset, spread = mean[repeated].square().mean().sqrt(), std[repeated].square().mean().sqrt()
    if offset > FAR * spread:
        warnings.append(
            f"the values lie far from zero: their means are {float(offset):.3g}, their standard deviations "
            f"{float(spread):.3g} (root mean square). The prior is learned better if the mean is subtracted first"
        )
    varied = std[repeated & (std > 0)]
    if len(obs.x_shape) == 1 and len(varied) and varied.max() > UNEQUAL * varied.min():
        warnings.append(
            f"the columns differ in size: their standard deviations are {float(varied.min()):.3g} to "
            f"{float(varied.max()):.3g}, and columns with small ones are hardly learned. Standardise them: (y - mean) "
            "/ std of each column"
        )
    return warnings


def entry_moments(obs: Observations) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return how often each entry of x is measured, and the mean and standard deviation of its values, `(*event)`."""
    sums = torch.zeros(3, *obs.x_shape, dtype=torch.float64)
    center = None
    for part in in_parts(obs, max(1, NUMBERS // sums[0].numel())):
        y, measured = part.y.double().cpu(), part.measured
        known = torch.ones_like(y, dtype=torch.bool) if measured is None else measured.cpu().expand_as(y)
        if center is None:  # squares of values far from zero lose precision
            center = torch.where(known, y, 0).sum(0) / known.sum(0).clamp(min=1)
        y = torch.where(known, y - center, 0)
        sums += torch.stack([known.sum(0).double(), y.sum(0), y.square().sum(0)])
    count, first, second = sums
    mean = first / count.clamp(min=1)
    assert center is not None
    return count, center + mean, (second / count.clamp(min=1) - mean.square()).clamp(min=0).sqrt()
