r"""The plausibility of a draw under its prior: the error of denoising it.

A sampler can end where the prior has almost no mass, especially between branches of the distribution. Such an outlier
fits its observation, has an ordinary size and passes every other test, but training on it creates mass there. The
denoiser detects it. Noise is added and removed again,

    e(x) = mean over σ and z of ‖d(x + σz, σ) − x‖² / (σ² N),

and −log q(x) grows by N e per unit of log σ. If the prior is concentrated near a manifold, only the directions along it
stay uncertain, and e is their fraction of the N dimensions; an outlier that the network has memorised has e of about 1.
The value of e for good draws depends on the prior, so a draw is compared with the median of its shard.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..priors import Prior

LEVELS = (0.03, 0.06, 0.12, 0.25, 0.5)  # noise levels, relative to the scale of the prior
REPEATS = 4  # noise vectors per level


@torch.no_grad()
def denoising_error(
    prior: Prior, x: Tensor, index: Tensor, *, seed: int, lap: int, batch_size: int | None = None
) -> Tensor:
    """Return e(x) per draw, `(n,)`.

    Args:
        x: (n, *event). The draws.
        index: (n,). The addresses of their noise.
        batch_size: The number of draws per batch.
    """
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
