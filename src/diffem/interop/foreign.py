r"""Common base of priors that wrap a denoiser of another library.

Other libraries write x_t = α_t u + σ_t z. Divided by α_t this is u + (σ_t/α_t) z, as in diffem. The noise level of the
denoiser is therefore the ratio σ_t/α_t, and its input is α_t times that of diffem. Nothing is clipped, so the Jacobian
is that of the network.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import InputError
from ..priors.base import Prior
from ..priors.batching import choose_batch
from .ranges import Range

SLACK = 1e-6  # relative tolerance for noise levels that were rounded to float32


class ForeignPrior(Prior):
    """A prior with the denoiser of another library; a subclass implements `estimate`.

    Args:
        mean: `(*event)`. The mean of the initial distribution of samplers.
        levels: The smallest and largest σ of the denoiser, in its own scale.
        range: The relation between the scales of samples in diffem and in the other library.
    """

    def __init__(self, mean: Tensor, levels: tuple[float, float], range: Range) -> None:
        low, high = levels
        if not 0 < low < high < float("inf"):
            raise InputError(f"the schedule must have noise levels 0 < low < high < inf, got {low} and {high}")
        super().__init__(mean, range.scale * low, range.scale * high, scale=range.scale)
        self.range = range

    def estimate(self, u_t: Tensor, sigma: Tensor) -> Tensor:
        """E[u | u_t] with u_t = u + σz, in the scale of the other library.

        Args:
            u_t: `(n, *event)`.
            sigma: `()` or `(n,)`, in float64.
        """
        raise NotImplementedError

    def batch_for(self, most: int) -> int:
        return choose_batch(self, most)

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        sigma = sigma.to(torch.float32 if x_t.device.type == "mps" else torch.float64)
        low, high = self.sigma_min, self.sigma_max
        # only on the CPU: on an accelerator the check would synchronise in every step
        if sigma.device.type == "cpu" and not ((sigma >= low * (1 - SLACK)) & (sigma <= high * (1 + SLACK))).all():
            raise InputError(
                f"this denoiser supports noise levels from {low:g} to {high:g}, got {sigma.flatten()[:4].tolist()}"
            )
        sigma = sigma.clamp(low, high) / self.range.scale
        return self.range.ours(self.estimate(self.range.theirs(x_t), sigma).to(x_t.dtype))

    def extra_repr(self) -> str:
        return f"event_shape={self.event_shape}, sigma in [{self.sigma_min:g}, {self.sigma_max:g}], {self.range}"


def start(mean: Tensor | None, event_shape: tuple[int, ...] | None, like: Tensor, owner: str) -> Tensor:
    """The given mean `(*event)`, or zeros with the dtype and device of `like`; `owner` names the caller in errors."""
    if mean is not None:
        if event_shape is not None and tuple(event_shape) != tuple(mean.shape):
            raise InputError(f"{owner}: event_shape {tuple(event_shape)} and mean {tuple(mean.shape)} differ")
        return mean
    if event_shape is None:
        raise InputError(f"{owner}: pass event_shape=..., the shape of one sample, or mean=...")
    dtype = like.dtype if like.is_floating_point() else torch.get_default_dtype()
    return torch.zeros(tuple(event_shape), dtype=dtype, device=like.device)
