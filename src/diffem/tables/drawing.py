"""Draws of the missing values of rows given the others, and their expectation.

The mean of k draws differs from E[x | y] by 1/√k of their spread. Another estimate has a smaller error: a draw x of the
network plus noise of level σ is a sample of x_t given y, so the mean of E[x | x + σz, y] over draws is E[x | y] too,
and this conditional expectation varies less from draw to draw. For a Gaussian prior E[x | y] is known exactly.
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

NOISE = 0.03  # stated noise level of a value, relative to the standard deviation of its column
LEVEL = 1.0  # σ for expectations of numbers: the scale of the data
CATEGORY_LEVEL = 4.0  # σ for expectations of categories: larger than the distances between code words
ADDRESSES = 1 << 32
ROWS = 1 << 14  # rows per batch of expectations


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
        """Multiply the distances of the draws from the expectation by factors that broadcast to a row."""
        return Draws((self.mean + factors * (self.x - self.mean)).astype(np.float32), self.mean)


@torch.no_grad()
def draw(
    priors: Sequence[Prior], z: np.ndarray, draws: int, *, steps: int, seed: int, numeric: np.ndarray | None = None
) -> Draws:
    """Draw from the posteriors of rows z `(n, ...)` with NaN for gaps, by the priors in turn.

    The random numbers of a row are a function of its values, so a row is imputed in the same way in every table.

    Args:
        draws: The number of draws per row.
        steps: The number of sampling steps.
        numeric: `(size,)`. Which coordinates of rows `(size, ...)` are numbers; None if all are.
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
        # `lap` gives each prior its own random numbers: with the same ones, draws of two priors are nearly equal
        drawn = posterior.sample(count, steps, sampler, seed, lap=first, index=index, progress=False)
        mean += count / draws * expectation(posterior, drawn, columns, seed=seed, index=index).cpu().numpy()
        x[first :: len(priors)] = drawn.cpu().numpy()
    if not np.isfinite(x).all():
        raise FloatingPointError(
            f"{int((~np.isfinite(x)).sum())} of {x.size} drawn values are not finite: the training diverged; fit again "
            "with a lower learning rate, such as recipe={'train.lr': 3e-4}"
        )
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
    """Estimate E[x | y] of n observations, `(n, ...)`, from posterior draws `(k, n, ...)`.

    Args:
        numeric: `(size,)`. Which coordinates of samples `(size, ...)` are numbers; None if all are.
        index: `(n,)`. Addresses of the observations.
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
    """Hash every row of z `(n, ...)` to a number below 2³²; equal rows get different numbers, in their order."""
    frame = pd.DataFrame(np.nan_to_num(z.reshape(len(z), -1), nan=1e30))
    hashes = pd.util.hash_pandas_object(frame, index=False)
    repeats = hashes.groupby(hashes).cumcount().to_numpy()
    return ((hashes.to_numpy() % ADDRESSES).astype(np.int64) + 40503 * repeats) % ADDRESSES
