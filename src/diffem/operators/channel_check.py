"""A check that the functions of a channel can be used, on a few observations and before anything is learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..files.memory import is_out_of_memory
from .channel import Channel

T = TypeVar("T")

FEW = 4  # observations that are tried, each several times if samples are small:
NUMBERS = 1024  # single bits with little noise are random in a few of a thousand


def check_channel(A: Channel, y: Tensor) -> Channel:
    """Try the functions of a channel on the first observations.

    Args:
        A: The channel, with shared parameters or with parameters for n observations.
        y: (n, *measurement). The observations.

    Returns:
        The channel with the shape of a sample.

    Raises:
        InputError: If a function fails, returns wrong shapes or values that are not finite, depends on other samples
            of the batch, or is random although `random=False` was given, or the reverse.
    """
    n = min(FEW, len(y))
    first = A[:n]
    shaped = _call_user_function("features or estimate", lambda: first.fitted(y[:n].clone()))
    assert shaped.x_shape is not None
    rows = torch.arange(max(n, math.ceil(NUMBERS / math.prod(shaped.x_shape)))) % n
    few, seen = shaped[rows], y[rows.to(y.device)]
    features = _call_without_change("features", few.features, seen)
    _require_image_like(features, shaped.x_shape)
    _require_equal("features", "the other samples of the batch", few[:1].features(seen[:1]), features[:1])
    estimate = _call_without_change("estimate", few.estimate, seen)
    _check_simulation(few, seen, _samples(few, seen, estimate))
    new = A[:]
    new.x_shape = shaped.x_shape
    return new


def _require_image_like(features: Tensor, x_shape: tuple[int, ...]) -> None:
    given = tuple(features.shape[1:])
    if len(x_shape) == 1 and len(given) > 1:
        raise InputError(
            f"Channel: features of vectors must be (numbers,) per observation, got {given} for samples of shape "
            f"{x_shape}"
        )
    if len(x_shape) > 1 and given[-2:] != x_shape[-2:]:
        raise InputError(
            f"Channel: features must be image-like, (channels, {x_shape[-2]}, {x_shape[-1]}) per observation for "
            f"samples of shape {x_shape}, got {given}"
        )


def _check_simulation(A: Channel, y: Tensor, x: Tensor) -> None:
    n, stream = len(x), Stream(0, "channel check")
    index = torch.arange(n, device=x.device)

    def simulate(part: slice = slice(None), x: Tensor = x, offset: int = 0) -> Tensor:
        return _call_user_function("simulate", lambda: A[part].simulate(x[part], stream, index[part] + offset))

    first = _call_without_change("simulate", lambda x: A.simulate(x, stream, index), x)
    if first.shape != y.shape:
        raise InputError(
            f"Channel: simulate returns {tuple(first.shape[1:])} per observation, y has {tuple(y.shape[1:])}"
        )
    source = "random numbers that do not come from rng" if A.random else "random numbers, and random=False was given"
    _require_equal("simulate", source, simulate(), first)
    _require_equal("simulate", "the other samples of the batch", simulate(slice(0, 1)), first[:1])
    if A.random and all(torch.equal(simulate(offset=k * n), first) for k in (1, 2, 3)):
        raise InputError(
            "Channel: simulate returns the same y for different random numbers: a channel is random given x. "
            "Use the random numbers of rng, or state random=False for a deterministic channel"
        )
    others = [simulate(x=other) for other in (x.flip(0) + 1, 2 * x - 1, -x, torch.zeros_like(x))]
    if all(torch.equal(other, first) for other in others):
        raise InputError("Channel: simulate returns the same y for different x: it must depend on x")


def _samples(A: Channel, y: Tensor, estimate: Tensor | None) -> Tensor:
    """Samples to try, `(n, *x_shape)`: estimates with noise of their size, so that some values are negative."""
    assert A.x_shape is not None
    noise = Stream(0, "channel check samples").normal(torch.arange(len(y), device=y.device), A.x_shape, dtype=y.dtype)
    if estimate is None:
        return noise
    size = float(estimate.double().square().mean().sqrt())
    return estimate + (0.5 * size if size > 0 else 1.0) * noise


def _call_without_change(name: str, call: Callable[[Tensor], T], argument: Tensor) -> T:
    """Call a function of the user, which must not write into its argument."""
    given = argument.clone()
    result = _call_user_function(name, lambda: call(given))
    if not torch.equal(given, argument):
        raise InputError(f"Channel: {name} changes its argument in place; it must compute a new tensor")
    return result


def _require_equal(name: str, what: str, one: Tensor, other: Tensor) -> None:
    # sums over other batches may be rounded differently
    if one.shape != other.shape or not torch.allclose(one, other, rtol=1e-4, atol=1e-5 * float(other.abs().max() + 1)):
        raise InputError(f"Channel: the result of {name} depends on {what}")


def _call_user_function(name: str, call: Callable[[], T]) -> T:
    """Call a function of the user. Its errors become `InputError`."""
    try:
        return call()
    except InputError:
        raise
    except Exception as error:
        if isinstance(error, RuntimeError) and is_out_of_memory(error):
            raise
        raise InputError(
            f"Channel: {name} fails: {type(error).__name__}: {error}. It must accept any finite x, also negative "
            "values, and compute in the dtype and on the device of its argument"
        ) from error
