"""The library computes outside of its caller's autocast and inference modes.

`torch.autocast` around a call would run solves, covariances and operators in half precision, and posterior draws would
be too wide, without an error. The precision of a network is a property of its prior (`DiffusionPrior.compute_in`).
`torch.inference_mode` would make vector–Jacobian products impossible. Public functions therefore leave both modes and
restore them on return.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")


@contextmanager
def default_modes() -> Iterator[None]:
    """Disable autocast and inference mode inside this context.

    Gradients are recorded only if the caller records them.
    """
    with ExitStack() as stack:
        for device in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        if torch.is_inference_mode_enabled():
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.set_grad_enabled(False))  # leaving inference mode would turn it on
        yield


def in_default_modes(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a public function with `default_modes`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not (
            torch.is_inference_mode_enabled() or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
        ):
            return function(*args, **kwargs)
        with default_modes():
            return function(*args, **kwargs)

    return call


def differentiable(t: Tensor) -> Tensor:
    """Return t, or a copy if t was made in inference mode: such tensors cannot enter a VJP."""
    return t.clone() if t.is_inference() else t
