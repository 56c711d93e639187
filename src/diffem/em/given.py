"""What is checked about observations before a run begins: mistakes that would show only in its results, or not at all."""

from __future__ import annotations

from ..data import Observations
from ..errors import InputError
from ..operators import Function, Operator, OperatorError, check
from .table import warn


def check_given(obs: Observations, images: bool) -> None:
    """Refuse functions that are no linear operators; warn of images whose channels seem to come last.

    Args:
        images: Whether the network takes the samples as images, (channels, height, width).
    """
    few = obs[:2]
    if has_function(few.A):
        try:
            check(few.A, obs.x_shape, dtype=few.y.dtype, device=few.y.device)
        except OperatorError as error:
            raise InputError(f"the operator of the observations cannot be used:\n{error}") from None
    if images:
        check_axes(obs.x_shape)


def has_function(A: Operator) -> bool:
    """Whether a function of the user's is part of the operator."""
    return isinstance(A, Function) or any(map(has_function, A.children()))


def check_axes(shape: tuple[int, ...]) -> None:
    if len(shape) == 3 and shape[-1] in (3, 4) and shape[0] > 4:
        warn(
            f"the samples have shape {shape}, which is read as (channels, height, width): {shape[0]} channels of "
            f"{shape[1]}×{shape[2]} pixels. If the channels come last, move them: samples of shape "
            f"{(shape[-1], *shape[:2])}, such as y.transpose(0, 3, 1, 2) of a NumPy array"
        )
