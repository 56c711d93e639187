"""How many draws to make at a time: enough to fill the device, few enough to fit it. Draws do not depend on it."""

from __future__ import annotations

import math

import torch

from ..priors import DiffusionPrior
from ..priors.diffusion import HALF

NUMBERS = 1 << 22  # numbers in a batch of samples, beyond which a GPU gains nothing from more
CPU_IMAGES = 64
SHARE = 0.8  # of the free memory of the device
PROBE = 8


def choose_batch(prior: DiffusionPrior, most: int, precision: str = "float32") -> int:
    """The micro-batch of posterior draws under `prior`, at most `most`."""
    size, device = math.prod(prior.event_shape), prior.mean.device
    if device.type != "cuda":
        return min(most, CPU_IMAGES) if len(prior.event_shape) == 3 else most
    fits = _free_bytes(device) * SHARE / _bytes_per_sample(prior, precision)
    return min(most, power_of_two_below(min(NUMBERS / size, fits)))


def power_of_two_below(value: float) -> int:
    return 2 ** max(0, math.floor(math.log2(max(1.0, value))))


def _free_bytes(device: torch.device) -> int:
    free, _ = torch.cuda.mem_get_info(device)
    return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)


def _bytes_per_sample(prior: DiffusionPrior, precision: str) -> float:
    """What one more sample adds to the memory that a forward pass and a vector–Jacobian product hold, without compilation.

    The difference of two batches: what libraries set aside whatever the batch is no sample's share.
    """
    _, few, many = (_peak_bytes(prior, precision, count) for count in (PROBE, PROBE, 8 * PROBE))
    return max(1.0, (many - few) / (7 * PROBE))


def _peak_bytes(prior: DiffusionPrior, precision: str, count: int) -> int:
    device = prior.mean.device
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    half = HALF.get(precision)
    with torch.enable_grad(), torch.autocast(device.type, half, enabled=half is not None):
        x = torch.zeros(count, *prior.event_shape, device=device, dtype=prior.mean.dtype, requires_grad=True)
        h = prior.network.forward(x, torch.zeros(count, device=device, dtype=x.dtype))
        torch.autograd.grad(h, x, torch.ones_like(h))
    return torch.cuda.max_memory_allocated(device) - before


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether the device, or the host, ran out of memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)
