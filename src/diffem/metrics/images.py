"""Errors of reconstructions against a known truth, per sample."""

from __future__ import annotations

import torch
from torch import Tensor

from ..observations import Observations


def mse(x: Tensor, truth: Tensor) -> Tensor:
    """`(n,)`."""
    return (x - truth).square().flatten(1).mean(1)


def psnr(x: Tensor, truth: Tensor, data_range: float = 4.0) -> Tensor:
    """Peak signal-to-noise ratio in dB, `(n,)`, for images on a scale of width `data_range`."""
    return 10 * torch.log10(data_range**2 / mse(x, truth))


def mse_unmeasured(x: Tensor, truth: Tensor, obs: Observations) -> float:
    """Mean squared error over the entries that were not measured, for operators that measure entries of x."""
    measured = obs.measured
    if measured is None or measured.expand_as(obs.y).shape != truth.shape:
        return float(mse(x, truth).mean())
    return float((x - truth).square()[~measured.expand_as(truth)].double().mean())
