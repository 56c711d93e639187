r"""Which posterior draws may be trained on: finite, explaining their observation, of plausible size.

Expectation–maximisation amplifies whatever is wrong with its draws, so a draw that does not explain its own observation is not one
of the posterior. The residual χ² of m measured values is compared with a threshold per value, and never more tightly than five
standard deviations of what pure noise gives (Wilson & Hilferty's approximation), which matters when m is small. An observation that
measures nothing has no residual: its draws are samples of the prior, and need only be finite and of plausible size.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..observations import Observations
from ..priors import Prior

PART_BYTES = 1 << 23  # of draws screened at a time on a CPU


def chi2_limit(counts: Tensor, threshold: float) -> Tensor:
    """The largest accepted χ² per measured value for m measured values. counts: `(n,)`."""
    m = counts.double().clamp(min=1)
    spread = 2 / (9 * m)
    noise = (1 - spread + 5 * spread.sqrt()) ** 3
    return noise.clamp(min=threshold)


def largest_plausible(prior: Prior, bound: float | None) -> float:
    """|x| beyond which a sample is implausible, in the units of the data.

    Args:
        bound: A multiple of the prior's scale (`e_step.bound`); when None, the mean's size and eight standard
            deviations of the Gaussian start.
    """
    if bound is not None:
        return bound * prior.scale
    cov = prior.covariance()
    spread = prior.scale if cov is None else float(cov.diagonal(prior.event_shape).max().sqrt())
    return float(prior.mean.abs().max()) + 8 * spread


@dataclass(frozen=True)
class Screening:
    """What was asked of every draw, `(n,)` each.

    Attributes:
        finite: It has no NaN and nothing infinite.
        inside: It is nowhere larger than the bound.
        fits: It explains its observation.
    """

    finite: Tensor
    inside: Tensor
    fits: Tensor

    @property
    def good(self) -> Tensor:
        """Whether a draw may be used."""
        return self.finite & self.inside & self.fits

    @property
    def misfit(self) -> Tensor:
        """Whether a draw is finite and does not explain its observation."""
        return self.finite & ~self.fits

    @property
    def only_outside(self) -> Tensor:
        """Whether a draw explains its observation and is larger than the bound."""
        return self.finite & ~self.inside & self.fits

    @classmethod
    def stack(cls, parts: list[Screening]) -> Screening:
        """Screenings of several draws each, `(parts, n)`."""
        return cls(*(torch.stack([getattr(p, name) for p in parts]) for name in ("finite", "inside", "fits")))


def screen(x: Tensor, obs: Observations, threshold: float, bound: float) -> Screening:
    """Screen draws x `(n, *event)`, one per observation; looked at in parts."""
    parts = [_screen(x[rows], obs[rows], threshold, bound) for rows in parts_of(x)]
    return Screening(*(torch.cat([getattr(p, name) for p in parts]) for name in ("finite", "inside", "fits")))


def acceptable(x: Tensor, obs: Observations, threshold: float, bound: float) -> Tensor:
    """`(n,)` True where a draw may be used. x: `(n, *event)`, one per observation."""
    return screen(x, obs, threshold, bound).good


def total_chi2(x: Tensor, obs: Observations) -> float:
    """The sum of χ² of draws x `(n, *event)` over the observations that measure something."""
    total = 0.0
    for rows in parts_of(x):
        part = obs[rows]
        total += float(torch.where(part.empty(), 0, part.chi2(x[rows])).double().sum())
    return total


def parts_of(x: Tensor) -> Iterator[slice]:
    """Rows of x `(n, *event)` that take `PART_BYTES` together: what is computed from them takes little memory."""
    rows = max(1, PART_BYTES // max(1, x[0].numel() * x.element_size())) if x.device.type == "cpu" else len(x)
    return (slice(start, start + rows) for start in range(0, len(x), rows))


def _screen(x: Tensor, obs: Observations, threshold: float, bound: float) -> Screening:
    flat = x.flatten(1)
    finite = torch.isfinite(flat).all(1)
    clean = torch.where(finite.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)
    inside = flat.nan_to_num(torch.inf).abs().amax(1) <= bound
    counts = obs.counts()
    fits = (counts == 0) | (obs.chi2(clean) <= chi2_limit(counts, threshold))
    return Screening(finite, inside, fits)
