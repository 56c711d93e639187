"""Draws of what is missing in rows given what is not, and their expectation.

The mean of k draws differs from E[x | y] by 1/√k of their spread. The expectation has a smaller error: a draw x of the
network with noise of level σ is a sample of x_t given y, so the mean of E[x | x + σz, y] over draws is E[x | y] too,
and what varies from draw to draw is only what x_t tells about x besides y. Of a Gaussian prior it is known exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..core.randomness import Stream
from ..observations import Observations
from ..posterior import Conditional, GaussianPosterior, Posterior
from ..priors import GaussianPrior, Prior
from ..priors.base import evaluation_mode

NOISE = 0.03  # standard deviation of an entry's noise, relative to that of its column
LEVEL = 1.0  # σ of the noise behind expectations of numbers: that of the data
CATEGORY_LEVEL = 4.0  # the same for categories, whose code words noise must not leave apart
ADDRESSES = 1 << 32
ROWS = 1 << 14  # whose expectations are computed at once


@dataclass(frozen=True)
class Draws:
    """Draws of whole rows.

    Attributes:
        x: `(draws, n, ...)`.
        mean: `(n, ...)`, the expectation.
    """

    x: np.ndarray
    mean: np.ndarray

    def __getitem__(self, rows: np.ndarray) -> Draws:
        """The draws of some rows."""
        return Draws(self.x[:, rows], self.mean[rows])

    def scaled(self, factors: np.ndarray) -> Draws:
        """The draws with their distances from the expectation multiplied by factors that broadcast to a row."""
        return Draws((self.mean + factors * (self.x - self.mean)).astype(np.float32), self.mean)


@torch.no_grad()
def draw(
    priors: Sequence[Prior], z: np.ndarray, draws: int, *, steps: int, seed: int, numeric: np.ndarray | None = None
) -> Draws:
    """Posterior draws of rows z `(n, ...)` with NaN for gaps, by the priors in turn.

    The random numbers of a row follow from its values: a row is imputed in the same way in any table and at any place.

    Args:
        draws: Per row.
        steps: Of a draw.
        numeric: `(size,)`, which coordinates of rows `(size, ...)` hold numbers; all if None.
    """
    x = np.zeros((draws, *z.shape), dtype=np.float32)
    if not z[0].size:  # no column varies
        return Draws(x, x[0])
    index = torch.from_numpy(row_addresses(z))
    obs, mean = Observations(torch.from_numpy(z), sigma=NOISE), np.zeros(z.shape, dtype=np.float32)
    columns = None if numeric is None or numeric.all() else torch.from_numpy(numeric)
    for first, prior in enumerate(priors[:draws]):
        posterior, count = _posterior(prior, obs), len(range(first, draws, len(priors)))
        sampler = None if isinstance(prior, GaussianPrior) else "ddpm2"
        # `lap` tells the random numbers of the priors apart: with the same ones, draws of two priors are nearly equal
        drawn = posterior.sample(count, steps, sampler, seed, lap=first, index=index, progress=False)
        mean += count / draws * expectation(posterior, drawn, columns, seed=seed, index=index).cpu().numpy()
        x[first :: len(priors)] = drawn.cpu().numpy()
    if not np.isfinite(x).all():
        raise FloatingPointError(f"{int((~np.isfinite(x)).sum())} imputed values are not finite; fit with a lower lr")
    return Draws(x, mean)


def _posterior(prior: Prior, obs: Observations) -> Posterior:
    obs = obs.to(prior.mean.device)
    if isinstance(prior, GaussianPrior):
        return GaussianPosterior(prior, obs)
    return Conditional(prior, obs, check=False)


@torch.no_grad()
def expectation(
    posterior: Posterior, drawn: Tensor, numeric: Tensor | None = None, *, seed: int, index: Tensor
) -> Tensor:
    """E[x | y] of n observations, `(n, ...)`, estimated from draws `(k, n, ...)`; see above.

    Args:
        posterior: Of the observations.
        drawn: Draws from it.
        numeric: `(size,)`, which coordinates of samples `(size, ...)` hold numbers; all if None.
        index: Addresses of the observations, `(n,)`.
    """
    if isinstance(posterior.prior, GaussianPrior):
        return posterior.prior.posterior_mean(posterior.obs)
    total = _expected(posterior, drawn, LEVEL, seed, index)
    if numeric is None:
        return total
    return torch.where(numeric.to(total.device), total, _expected(posterior, drawn, CATEGORY_LEVEL, seed, index))


def _expected(posterior: Posterior, drawn: Tensor, level: float, seed: int, index: Tensor) -> Tensor:
    """The mean of E[x | x + σz, y] over draws x `(k, n, ...)`, at σ = `level`."""
    total, stream = torch.zeros_like(drawn[0]), Stream(seed, "expectation")
    with evaluation_mode(posterior.prior):
        for rows in torch.arange(len(index)).split(ROWS):
            some, address = posterior[rows], index[rows].to(drawn.device)
            for k, x in enumerate(drawn[:, rows]):
                z = stream.normal(address, tuple(x.shape[1:]), draw=torch.full_like(address, k), dtype=x.dtype)
                total[rows] += some(x + level * z, level)
    return total / len(drawn)


def row_addresses(z: np.ndarray) -> np.ndarray:
    """A number below 2³² for every row of z `(n, ...)`, from its values and, for equal rows, their order."""
    frame = pd.DataFrame(np.nan_to_num(z.reshape(len(z), -1), nan=1e30))
    hashes = pd.util.hash_pandas_object(frame, index=False)
    repeats = hashes.groupby(hashes).cumcount().to_numpy()
    return ((hashes.to_numpy() % ADDRESSES).astype(np.int64) + 40503 * repeats) % ADDRESSES
