"""Errors of reconstructions against a known truth, per sample."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from ..core.errors import InputError
from ..core.modes import in_default_modes
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
    """Mean squared error over the entries that were not measured.

    Over all entries if every entry was measured, or if the operator does not measure entries of x, like a blur or
    k-space.
    """
    require_alike(x, truth)
    if truth.shape != (len(obs), *obs.x_shape):
        raise InputError(f"needed: one sample per observation, {(len(obs), *obs.x_shape)}, got {tuple(truth.shape)}")
    entries = obs.measured_entries()
    if entries is None or bool(entries.all()):
        return float(mse(x, truth).mean())
    return float((x - truth).square()[~entries.expand_as(truth)].double().mean())


@in_default_modes
def ssim(x: Tensor, truth: Tensor, data_range: float = 1.0) -> Tensor:
    r"""Structural similarity (Wang et al. 2004), `(n,)`, of images `(n, channels, H, W)`, averaged over channels.

    With local means μ, variances s² and covariance c under a Gaussian window (σ = 1.5, 11×11), the mean over all pixels
    (the image reflected at its border) of

        (2μ_x μ_t + C₁)(2c + C₂) / ((μ_x² + μ_t² + C₁)(s_x² + s_t² + C₂)),   C₁ = (0.01 L)², C₂ = (0.03 L)²,

    where the values span `data_range` = L.
    """
    if x.shape != truth.shape or x.ndim != 4 or min(x.shape[-2:]) < 11:
        raise InputError(
            f"ssim compares images (n, channels, H, W) of at least 11×11, got {tuple(x.shape)} and {tuple(truth.shape)}"
        )
    offsets = torch.arange(-5, 6, dtype=x.dtype, device=x.device)
    window = torch.exp(-(offsets**2) / (2 * 1.5**2))
    window = window / window.sum()
    channels = x.shape[1]

    def local(v: Tensor) -> Tensor:
        v = functional.pad(v, (5, 5, 5, 5), mode="reflect")
        rows = functional.conv2d(v, window.reshape(1, 1, -1, 1).expand(channels, 1, -1, 1), groups=channels)
        return functional.conv2d(rows, window.reshape(1, 1, 1, -1).expand(channels, 1, 1, -1), groups=channels)

    mean_x, mean_t = local(x), local(truth)
    var_x, var_t = (local(v * v).sub(m**2).clamp(min=0) for v, m in ((x, mean_x), (truth, mean_t)))
    cov = local(x * truth) - mean_x * mean_t
    c1, c2 = (0.01 * data_range) ** 2, (0.03 * data_range) ** 2
    value = (2 * mean_x * mean_t + c1) * (2 * cov + c2) / ((mean_x**2 + mean_t**2 + c1) * (var_x + var_t + c2))
    return value.flatten(1).mean(1)
