"""Default batch sizes: large enough to use the device well, small enough for its memory.

Draws do not depend on them.
"""

from __future__ import annotations

import math

import torch

from ..files.memory import free_on
from .base import Prior

NUMBERS = 1 << 22  # numbers in a batch of samples; a larger batch is not faster on a GPU
CPU_NUMBERS = 1 << 18  # the same for a CPU: 85 colour images of 32×32
SHARE = 0.8  # share of the free memory of the device that a batch may take
# pairs of batch sizes whose memory is compared; the second pair if the first is out of memory
PROBES = (
    (8, 64),
    (1, 4),
)


def choose_batch(prior: Prior, most: int) -> int:
    """Choose the batch size of a prior whose denoiser is a network, at most `most`."""
    size, device = math.prod(prior.event_shape), prior.mean.device
    if device.type != "cuda":
        return min(most, max(1, CPU_NUMBERS // size))
    fits = free_on(device) * SHARE / _bytes_per_sample(prior)
    return min(most, power_of_two_below(min(NUMBERS / size, fits)))


def power_of_two_below(value: float) -> int:
    return 2 ** max(0, math.floor(math.log2(max(1.0, value))))


def _bytes_per_sample(prior: Prior) -> float:
    """Measure the memory of one sample in an evaluation with a vector–Jacobian product, without compilation.

    It is the difference of two batch sizes, which excludes fixed workspaces of libraries. Infinite if a few samples are
    out of memory.
    """
    for few, many in PROBES:
        try:
            _, low, high = (_peak_bytes(prior, count) for count in (few, few, many))
            return max(1.0, (high - low) / (many - few))
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
    return math.inf


def _peak_bytes(prior: Prior, count: int) -> int:
    device = prior.mean.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    # a trained network is compiled for another batch size
    with torch.enable_grad(), torch.compiler.set_stance("force_eager"):
        x = torch.zeros(count, *prior.event_shape, device=device, dtype=prior.mean.dtype, requires_grad=True)
        x_hat = prior.denoise(x, torch.full((), prior.sigma_max, device=device, dtype=x.dtype))
        torch.autograd.grad(x_hat, x, torch.ones_like(x_hat))
    return torch.cuda.max_memory_allocated(device) - before
