"""Errors of reconstructions against a known truth, per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import InputError
from ..observations import Observations
from .inputs import require_alike


def mse(x: Tensor, truth: Tensor) -> Tensor:
    """Mean squared error of x `(n, *event)`, `(n,)`."""
    require_alike(x, truth)
    return (x - truth).square().flatten(1).mean(1)


def psnr(x: Tensor, truth: Tensor, data_range: float = 4.0) -> Tensor:
    """Peak signal-to-noise ratio in dB, `(n,)`, for images on a scale of width `data_range`."""
    if not data_range > 0:
        raise InputError(f"data_range must be positive, got {data_range}")
    return 10 * torch.log10(data_range**2 / mse(x, truth))


def mse_unmeasured(x: Tensor, truth: Tensor, obs: Observations) -> float:
    """Mean squared error over the entries that were not measured, for operators that measure entries of x."""
    require_alike(x, truth)
    if truth.shape != (len(obs), *obs.x_shape):
        raise InputError(f"needed: one sample per observation, {(len(obs), *obs.x_shape)}, got {tuple(truth.shape)}")
    measured = obs.measured
    if measured is None or measured.expand_as(obs.y).shape != truth.shape:
        return float(mse(x, truth).mean())
    return float((x - truth).square()[~measured.expand_as(truth)].double().mean())
