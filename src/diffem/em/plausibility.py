r"""How plausible a draw is to the prior it came from: the error of denoising it.

A sampler can end where the prior has next to no mass, above all between branches of it: such a draw explains its observation, is of ordinary
size, and passes every other test; trained on, it becomes mass. The denoiser tells it apart. Noise is added and taken off again,

    e(x) = mean over σ and z of ‖d(x + σz, σ) − x‖² / (σ² N),

and −log q(x) grows by N e per unit of log σ: where the prior is concentrated only the directions along it stay uncertain and e is their share of the
N dimensions, while a stray that the network has merely learned by heart has e of about 1. How large e is for good draws is the prior's own affair,
so a draw is judged by the median of its shard.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..priors import Prior

LEVELS = (0.03, 0.06, 0.12, 0.25, 0.5)  # relative to the scale of the prior
REPEATS = 4


@torch.no_grad()
def denoising_error(
    prior: Prior, x: Tensor, index: Tensor, *, seed: int, lap: int, batch_size: int | None = None
) -> Tensor:
    """e(x) per draw, `(n,)`. x: `(n, *event)`; index: `(n,)` addresses of their noise."""
    stream, size = Stream(seed, "plausibility", lap), x[0].numel()
    errors = []
    for part, where in zip(x.split(batch_size or len(x)), index.to(x.device).split(batch_size or len(x)), strict=True):
        total = torch.zeros(len(part), dtype=torch.float64, device=x.device)
        for k, sigma in enumerate(level * prior.scale for level in LEVELS):
            for repeat in range(REPEATS):
                z = stream.normal(where, tuple(x.shape[1:]), step=k * REPEATS + repeat, dtype=x.dtype)
                error = prior(part + sigma * z, sigma) - part
                total += error.flatten(1).double().square().sum(1) / (sigma**2 * size)
        errors.append(total / (len(LEVELS) * REPEATS))
    return torch.cat(errors)
