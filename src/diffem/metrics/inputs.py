"""Checks of the arguments of metrics: tensors that torch would broadcast would give a plausible, wrong number."""

from __future__ import annotations

from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..observations import Observations


def require_alike(x: Tensor, truth: Tensor) -> None:
    """Raise InputError unless x and truth are tensors of one shape `(n, *event)`."""
    if not isinstance(x, Tensor) or not isinstance(truth, Tensor):
        raise InputError(f"needed: two tensors, got {type(x).__name__} and {type(truth).__name__}")
    if x.shape != truth.shape or x.ndim < 2:
        raise InputError(f"needed: two tensors (n, *event) of one shape, got {tuple(x.shape)} and {tuple(truth.shape)}")
    if not x.is_floating_point() or not truth.is_floating_point():
        raise InputError(
            f"both tensors must be floating point, got {x.dtype} and {truth.dtype}: convert integers with .float(), "
            "complex numbers with torch.view_as_real"
        )


def require_draws(draws: Tensor, truth: Tensor) -> None:
    """Raise InputError unless there are k ≥ 1 draws `(k, n, *event)` of the truth `(n, *event)`, without NaN."""
    if not isinstance(draws, Tensor) or not isinstance(truth, Tensor):
        raise InputError(f"needed: tensors of draws and truth, got {type(draws).__name__} and {type(truth).__name__}")
    if draws.shape[1:] != truth.shape or truth.ndim < 2 or draws.numel() == 0:
        raise InputError(
            f"needed: draws (k, n, *event) of the truth (n, *event), got {tuple(draws.shape)} and {tuple(truth.shape)}"
        )
    if not draws.is_floating_point() or not truth.is_floating_point():
        raise InputError(f"draws and truth must be floating point, got {draws.dtype} and {truth.dtype}")
    if draws.isnan().any() or truth.isnan().any():  # a comparison with NaN is False: it would count as a rank
        raise InputError("draws and truth must not contain NaN: select the entries that are known")


def require_hidden(draws: Tensor | None, obs: Observations, hidden: Tensor) -> Tensor:
    """Check the hidden values of observations and the draws that did not see them.

    Args:
        draws: `(k, n, *event)`; None if there are none.
        hidden: Boolean, broadcastable to y `(n, *measurement)`.

    Returns:
        The mask of hidden values, `(n, *measurement)`.

    Raises:
        InputError: If the shapes do not fit, or a hidden value was not measured.
    """
    shape = (len(obs), *obs.x_shape)
    if draws is not None and (draws.ndim != len(shape) + 1 or draws.shape[1:] != shape):
        raise InputError(f"needed: draws (k, n, *event) with (n, *event) = {shape}, got {tuple(draws.shape)}")
    if not isinstance(hidden, Tensor) or hidden.dtype.is_floating_point or hidden.shape[:1] != (len(obs),):
        given = f"{hidden.dtype} {tuple(hidden.shape)}" if isinstance(hidden, Tensor) else type(hidden).__name__
        raise InputError(
            f"hidden must be a boolean mask for {count_of(len(obs), 'observation')}, as from `hide`, got {given}"
        )
    hidden, measured = hidden.bool().expand_as(obs.y), obs.measured
    if measured is not None and (hidden & ~measured).any():
        raise InputError("some values that are marked as hidden were not measured: there is nothing to compare with")
    return hidden
