"""Selection of the laps of a run that predict hidden values of held-out rows best.

Late laps overfit tables with little structure, and the Gaussian start is best for small tables that are nearly
Gaussian. A mixture of several laps is often better than each of them. It is selected greedily: laps are added one by
one, possibly twice, as long as the CRPS of the hidden values decreases (Caruana et al., 2004).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..priors import GaussianPrior, Prior
from .drawing import Draws, draw
from .gaps import Gaps
from .scores import coverage, crps

DRAWS, STEPS = 12, 16  # draws and sampling steps of each prior
ROWS, PATTERNS = 512, 4  # fewer rows are repeated with other gaps, at most this often
MEMBERS = 3  # largest number of priors in a mixture
WORTH = 0.002  # smallest relative decrease of the CRPS for which a prior is added
SPREADS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5)  # factors of the standard deviations of a Gaussian

Snap = Callable[[np.ndarray], np.ndarray]  # moves draws to the nearest possible values


@dataclass(frozen=True)
class HiddenValues:
    """Rows with hidden values, and draws of them.

    Attributes:
        z: `(n, ...)`. The rows.
        hidden: `(n, ...)`. The mask of the hidden values.
        drawn: Draws given the other values.
    """

    z: np.ndarray
    hidden: np.ndarray
    drawn: Draws

    @classmethod
    def joined(cls, several: Sequence[HiddenValues]) -> HiddenValues:
        """Concatenate the rows of several runs, with the smallest of their numbers of draws."""
        draws = min(len(one.drawn.x) for one in several)
        x = np.concatenate([one.drawn.x[:draws] for one in several], 1)
        mean = np.concatenate([one.drawn.mean for one in several])
        return cls(
            np.concatenate([one.z for one in several]), np.concatenate([one.hidden for one in several]), Draws(x, mean)
        )


def choose(
    priors: Sequence[Prior], z: np.ndarray, gaps: Gaps, snap: Snap, numeric: np.ndarray, seed: int
) -> tuple[list[Prior], HiddenValues | None]:
    """Choose the priors whose draws, taken in turn, predict hidden values best; returns them and these draws.

    If there is nothing to hide, the last prior is chosen. A Gaussian prior is replaced by a wider one, whose intervals
    have the right coverage (`widened`).

    Args:
        priors: The candidates.
        z: `(n, ...)`. The held-out rows.
        gaps: Chooses the values to hide.
        snap: Moves draws to the nearest possible values.
        numeric: Which coordinates are numbers.
    """
    z = np.concatenate([z] * int(np.clip(ROWS // len(z), 1, PATTERNS)))
    hidden = ~np.isnan(z) & gaps(z.shape, np.random.RandomState(seed % (1 << 32)))
    visible = np.where(hidden, np.nan, z).astype(np.float32)
    rows = hidden.reshape(len(z), -1).any(1)
    if not rows.any():
        return [priors[-1]], None
    z, hidden, visible = z[rows], hidden[rows], visible[rows]
    candidates = [_with_fitted_spread(prior, visible, z, hidden, seed) for prior in priors]
    drawn = [
        draw([prior], visible, DRAWS, steps=STEPS, seed=seed + k, numeric=numeric) for k, prior in enumerate(candidates)
    ]
    members = best_mixture([snap(one.x)[:, hidden] for one in drawn], z[hidden])
    x = np.stack([drawn[k].x for k in members], 1).reshape(-1, *z.shape)  # the members take turns
    mean = np.mean([drawn[k].mean for k in members], 0)
    return [candidates[k] for k in members], HiddenValues(z, hidden, Draws(x, mean))


def _with_fitted_spread(prior: Prior, visible: np.ndarray, z: np.ndarray, hidden: np.ndarray, seed: int) -> Prior:
    if not isinstance(prior, GaussianPrior):
        return prior
    return widened(prior, draw([prior], visible, DRAWS, steps=STEPS, seed=seed).x[:, hidden], z[hidden])


def best_mixture(draws: Sequence[np.ndarray], x: np.ndarray) -> list[int]:
    """Choose sets of draws `(k, n)`, possibly repeatedly, whose mixture has the smallest CRPS for x `(n,)`."""
    members: list[int] = []
    least = np.inf
    while len(members) < MEMBERS:
        scores = [crps(np.concatenate([draws[m] for m in [*members, k]]), x) for k in range(len(draws))]
        best = int(np.argmin(scores))
        if scores[best] > (1 - WORTH) * least:
            break
        members, least = [*members, best], scores[best]
    return members


def widened(prior: GaussianPrior, draws: np.ndarray, x: np.ndarray) -> GaussianPrior:
    """Widen a prior by the first of `SPREADS` with which draws `(k, n)` cover 90 % of x `(n,)`.

    A covariance fitted to few rows gives posteriors that are too narrow. A larger covariance with the same noise of
    values has nearly the same posterior means and wider posteriors.
    """
    mean = draws.mean(0)
    factor = next((s for s in SPREADS if coverage(mean + s * (draws - mean), x) >= 0.9), SPREADS[-1])
    cov = prior.covariance().scaled(factor)
    return GaussianPrior(prior.mean, cov, sigma_min=prior.sigma_min, sigma_max=prior.sigma_max)
