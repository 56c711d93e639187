r"""A denoiser from elsewhere as a prior: what every adapter shares.

Other libraries write x_t = α_t u + σ_t z. Divided by α_t that is ours, u + (σ_t/α_t) z: the level a denoiser is asked for is the ratio
σ_t/α_t, and its input is α_t times ours. Nothing is clipped on the way, so the Jacobian stays what the network's is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import InputError
from ..priors.base import Prior
from ..priors.batching import choose_batch
from .ranges import Range

SLACK = 1e-6  # a level rounded to float32 may fall that much outside the levels it was taken from


class ForeignPrior(Prior):
    """A subclass implements `estimate`; `levels` are the lowest and highest σ of the denoiser, in its own scale."""

    def __init__(self, mean: Tensor, levels: tuple[float, float], range: Range) -> None:
        low, high = levels
        if not 0 < low < high < float("inf"):
            raise InputError(f"the schedule must have noise levels 0 < low < high < inf, got {low} and {high}")
        super().__init__(mean, range.scale * low, range.scale * high, scale=range.scale)
        self.range = range

    def estimate(self, u_t: Tensor, sigma: Tensor) -> Tensor:
        """E[u | u_t] for u_t = u + σz `(n, *event)`, σ `()` or `(n,)` in float64, all in the denoiser's own scale."""
        raise NotImplementedError

    def batch_for(self, most: int) -> int:
        return choose_batch(self, most)

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.to(torch.float32 if x_t.device.type == "mps" else torch.float64)
        low, high = self.sigma_min, self.sigma_max
        # only where looking costs nothing: on an accelerator it would stall the step loop
        if sigma.device.type == "cpu" and not ((sigma >= low * (1 - SLACK)) & (sigma <= high * (1 + SLACK))).all():
            raise InputError(
                f"this denoiser knows noise levels from {low:g} to {high:g}, got {sigma.flatten()[:4].tolist()}"
            )
        sigma = sigma.clamp(low, high) / self.range.scale
        return self.range.ours(self.estimate(self.range.theirs(x_t), sigma).to(x_t.dtype))

    def extra_repr(self) -> str:
        return f"event_shape={self.event_shape}, sigma in [{self.sigma_min:g}, {self.sigma_max:g}], {self.range}"


def start(mean: Tensor | None, event_shape: tuple[int, ...] | None, like: Tensor, owner: str) -> Tensor:
    """Where sampling starts `(*event)`: the mean that was given, or zero with the dtype and device of `like`."""
    if mean is not None:
        if event_shape is not None and tuple(event_shape) != tuple(mean.shape):
            raise InputError(f"{owner}: event_shape {tuple(event_shape)} and mean {tuple(mean.shape)} differ")
        return mean
    if event_shape is None:
        raise InputError(f"{owner}: pass event_shape=..., the shape of one sample, or mean=...")
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    return torch.zeros(tuple(event_shape), dtype=dtype, device=like.device)
