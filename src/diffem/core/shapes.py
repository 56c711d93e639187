"""Input checks, and broadcasting of per-sample numbers over a batch.

Every tensor of the library has a leading sample axis: `x` is `(n, *event)`, `y` is `(n, *measurement)`.
A number that belongs to a sample (a noise level, a step size) is a scalar or has shape `(n,)`.
"""

import math

import numpy as np
import torch
from torch import Tensor

from . import vector_math  # noqa: F401  # initialises it
from .counting import count_of
from .errors import InputError


def per_sample(value: Tensor | float, like: Tensor) -> Tensor:
    """Reshape a scalar or `(n,)` value so that it multiplies `like` of shape `(n, *event)` sample by sample."""
    if not isinstance(value, Tensor):  # in the dtype of `like`: torch.as_tensor would round it to float32
        return torch.full((), value, dtype=like.dtype if like.is_floating_point() else None, device=like.device)
    value = value.to(like.device)
    if value.ndim == 0:
        return value
    return value.reshape(-1, *(1,) * (like.ndim - 1))


def noise_level(sigma: Tensor | float, x: Tensor) -> Tensor:
    """Validate a noise level for the batch `x` and return it in the dtype of `x`, as `()` or `(n,)`.

    Values on an accelerator are not read back: that would stall the step loop. Samplers validate their schedule once.
    """
    if not isinstance(sigma, Tensor):
        if not isinstance(sigma, int | float | np.number) or not (sigma > 0 and math.isfinite(sigma)):
            raise InputError(
                f"sigma must be positive and finite: a number, or a tensor with one per sample; got {sigma!r}"
            )
        # fill on the device: copying a host scalar over would synchronise
        return torch.full((), float(sigma), dtype=x.dtype, device=x.device)
    if sigma.ndim > 1 or (sigma.ndim == 1 and len(sigma) != len(x)):
        raise InputError(
            f"sigma must be a scalar or one value per sample, got shape {tuple(sigma.shape)} for "
            f"{count_of(len(x), 'sample')}"
        )
    if sigma.device.type == "cpu" and not (torch.isfinite(sigma) & (sigma > 0)).all():
        raise InputError(f"sigma must be positive and finite, got {sigma.detach().reshape(-1).tolist()[:4]}")
    return sigma.to(x)


def require_batch(x: object, name: str) -> Tensor:
    """Check that a value is a floating-point tensor with at least one sample. Raises InputError otherwise."""
    if not isinstance(x, Tensor):
        raise InputError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    if x.ndim == 0 or len(x) == 0:
        raise InputError(f"{name} must hold at least one sample along its first axis, got shape {tuple(x.shape)}")
    if x.is_complex():
        raise InputError(
            f"{name} must be real, got {x.dtype}; pass complex data as a real view with a last axis of size 2: "
            "torch.view_as_real(...)"
        )
    if not x.is_floating_point():
        raise InputError(f"{name} must be floating point, got {x.dtype}; .float() converts it")
    return x


def require_state(x_t: object, sigma: Tensor | float, mean: Tensor, owner: str) -> tuple[Tensor, Tensor]:
    """Check the arguments of a denoiser; returns x_t, and sigma in the dtype of x_t (`noise_level`).

    Args:
        x_t: `(n, *event)`.
        sigma: A number, `()` or `(n,)`.
        mean: `(*event)`. The mean of the prior, whose shape, dtype and device x_t must have.
        owner: The name of the denoiser, for error messages.

    Raises:
        InputError: If the arguments do not fit the denoiser.
    """
    x_t = require_batch(x_t, "x_t")
    require_like(x_t, "x_t", mean, owner)
    return x_t, noise_level(sigma, x_t)


def require_like(x: Tensor, name: str, mean: Tensor, owner: str) -> None:
    """Raise InputError unless samples x `(n, *event)` have the shape, dtype and device of `mean` `(*event)`."""
    require_precision(mean.dtype, f"the {owner}")
    require_event(x, tuple(mean.shape), owner)
    require_same_dtype(x, name, mean, f"the {owner}")


def require_precision(dtype: torch.dtype, owner: str) -> None:
    """Reject half precision, which is too coarse for solves, residuals and small noise levels."""
    if dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"{owner} must be float32 or float64, got {dtype}; convert with .to(torch.float32). To let a "
            "network compute in half precision, use compute_in('bf16') or compute_in('fp16') of its prior"
        )


CONVERT = "convert one with .to(...), a NumPy array with .astype(...)"


def require_same_dtype(a: Tensor, a_name: str, b: Tensor, b_name: str) -> None:
    if a.dtype != b.dtype:
        raise InputError(f"dtype mismatch: {a_name} is {a.dtype}, {b_name} is {b.dtype}; {CONVERT}")
    if a.device != b.device:
        raise InputError(f"device mismatch: {a_name} is on {a.device}, {b_name} is on {b.device}")


def promoted(x: Tensor, like: Tensor) -> Tensor:
    """Convert x to the dtype of `like` if that dtype is wider, which is exact; otherwise return x."""
    return x.to(like.dtype) if torch.promote_types(x.dtype, like.dtype) == like.dtype else x


def require_event(x: Tensor, event_shape: tuple[int, ...], owner: str) -> None:
    if tuple(x.shape[1:]) != tuple(event_shape):
        raise InputError(
            f"{owner} works on samples of shape {tuple(event_shape)}, got a batch of shape {tuple(x.shape)}, "
            f"that is samples of shape {tuple(x.shape[1:])}"
        )
