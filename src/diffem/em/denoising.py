r"""The denoising loss of a lap's network on training draws and on unseen draws, and that of the Gaussian start.

The loss of a sample x is the one that training minimises,

    ℓ(x) = mean over σ of (s²/σ² + 1) ‖d(x + σz, σ) − x‖² / (s² N),

at noise levels from the training's distribution, with s the scale of the data and N the number of entries. Draws for
held-out observations are made as in the E-step. A network that has learned the distribution of the draws has the same
loss on both; a network that overfits has a smaller loss on its training draws. The Gaussian start is a linear denoiser,
and a network that is large enough and trained long enough is not worse.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from ..core.randomness import Stream
from ..priors import DiffusionPrior, GaussianPrior, Prior
from ..runs.draws import DrawStore
from ..runs.recipe import Noise
from .noise_law import NoiseLaw, noise_law

LEVELS = 8  # noise levels that a loss is averaged over
TRAINED = 256  # largest number of training draws for this loss
FALLING = 0.25  # the loss of the last quarter of a training is compared with that of the quarter before


@torch.no_grad()
def denoising_measures(
    prior: DiffusionPrior,
    store: DrawStore,
    unseen: Tensor | None,
    noise: Noise,
    losses: list[float],
    batch_size: int | None = None,
) -> dict[str, float]:
    """Return the losses after the training of a lap.

    Args:
        unseen: Draws for held-out observations, `(n, *event)`; None if there are none.
        noise: The distribution of the noise levels in training.
        losses: The losses during the training.
        batch_size: The number of draws per batch.
    """
    law = noise_law(noise, prior.trained_min / prior.scale, prior.sigma_max / prior.scale)
    levels = prior.scale * noise_levels(law)
    x = _spread(store).to(prior.mean)
    own = denoising_losses(prior, x, levels, batch_size)
    measures = {"trained_loss": float(own.mean())}
    if (fall := loss_fall(losses)) is not None:
        measures["loss_fall"] = fall
    cov = prior.covariance()
    if cov is not None:
        gaussian = denoising_losses(GaussianPrior(prior.mean, cov), x, levels, batch_size)
        measures["gaussian_loss"] = float(gaussian.mean())
    if unseen is not None and len(unseen) > 1 and len(own) > 1:
        other = denoising_losses(prior, unseen.to(prior.mean), levels, batch_size)
        error = math.sqrt(float(own.var()) / len(own) + float(other.var()) / len(other))
        measures |= {"unseen_loss": float(other.mean()), "unseen_loss_error": error}
    return measures


def noise_levels(law: NoiseLaw, count: int = LEVELS) -> Tensor:
    """Return quantiles of the distribution of noise levels, `(count,)`, relative to the scale of the data."""
    u = Stream(0, "quantiles of the noise law").uniform(torch.arange(4096), (law.uniforms,))
    quantiles = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    return law.log_sigma(u.double()).quantile(quantiles).exp()


@torch.no_grad()
def denoising_losses(prior: Prior, x: Tensor, levels: Tensor, batch_size: int | None = None) -> Tensor:
    """Return ℓ(x) per sample, `(n,)`, in float64. x: `(n, *event)`; levels: `(k,)`, in the units of x."""
    stream, out = Stream(0, "denoising loss"), []
    for rows in torch.arange(len(x), device=x.device).split(batch_size or len(x)):
        part, total = x[rows], torch.zeros(len(rows), dtype=torch.float64, device=x.device)
        for k, sigma in enumerate(levels.tolist()):
            z = stream.normal(rows, tuple(x.shape[1:]), step=k, dtype=x.dtype)
            error = (prior(part + sigma * z, sigma) - part) / prior.scale
            total += ((prior.scale / sigma) ** 2 + 1) * error.flatten(1).double().square().mean(1)
        out.append(total / len(levels))
    return torch.cat(out)


def loss_fall(losses: list[float]) -> float | None:
    """Return the relative decrease of the loss over the last part of a training; None if it is too short."""
    count = int(FALLING * len(losses))
    if count < 1:
        return None
    before, after = sum(losses[-2 * count : -count]), sum(losses[-count:])
    return 1 - after / before if before > 0 else None


def _spread(store: DrawStore, most: int = TRAINED) -> Tensor:
    """Return draws `(n, *event)` at regular positions of all shards."""
    each = max(1, most // len(store))
    parts = []
    for k in range(0, len(store), max(1, len(store) // most)):
        rows = store.rows(k)
        wanted = np.unique(np.arange(each) * rows.shape[0] // each)
        parts.append(torch.from_numpy(rows[wanted]))
    return torch.cat(parts)
