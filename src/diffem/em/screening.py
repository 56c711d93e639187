r"""Screening: posterior draws must be finite, fit their observation and have a plausible size.

Expectation–maximisation amplifies errors of its draws, so draws that do not fit their own observation are rejected. The
residual χ² per measured value is compared with a threshold. The threshold is never below five standard deviations of
the χ² of pure noise (Wilson & Hilferty's approximation), which matters if there are few measured values. An observation
without measured values has no residual: its draws are samples of the prior and need only be finite and of plausible
size. Draws for a channel have no residual either: their fit is measured over all of them (`metrics/simulated.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..metrics.simulated import simulated_fit
from ..observations import Observations
from ..operators import Channel
from ..priors import Prior

PART_BYTES = 1 << 20  # bytes of draws that are screened at a time on a CPU
SUMMED_BYTES = 1 << 23  # bytes of draws whose χ² are summed in one tensor on a CPU; the rounding of sums depends on it


def chi2_limit(counts: Tensor, threshold: float) -> Tensor:
    """Return the largest accepted χ² per measured value. counts: `(n,)`, the numbers of measured values."""
    m = counts.double().clamp(min=1)
    spread = 2 / (9 * m)
    noise = (1 - spread + 5 * spread.sqrt()) ** 3
    return noise.clamp(min=threshold)


def largest_plausible(prior: Prior, bound: float | None) -> float:
    """Return the largest plausible |x|, in the units of the data.

    Args:
        prior: The prior of lap 0.
        bound: A multiple of the prior's scale (`e_step.bound`). Default: |mean| + 8 standard deviations of the Gaussian
            start.
    """
    if bound is not None:
        return bound * prior.scale
    cov = prior.covariance()
    spread = prior.scale if cov is None else float(cov.diagonal(prior.event_shape).max().sqrt())
    return float(prior.mean.abs().max()) + 8 * spread


class Screening(NamedTuple):
    """The results of the tests of every draw, `(n,)` each.

    Attributes:
        finite: The draw has no NaN and no infinite values.
        inside: |x| does not exceed the bound.
        fits: The draw fits its observation.
    """

    finite: Tensor
    inside: Tensor
    fits: Tensor

    @property
    def good(self) -> Tensor:
        """Whether a draw passed all tests."""
        return self.finite & self.inside & self.fits

    @property
    def misfit(self) -> Tensor:
        """Whether a draw is finite and does not fit its observation."""
        return self.finite & ~self.fits

    @property
    def only_outside(self) -> Tensor:
        """Whether a draw fits its observation and exceeds the bound."""
        return self.finite & ~self.inside & self.fits

    @classmethod
    def stack(cls, parts: list[Screening]) -> Screening:
        """Stack the results of several draws, `(parts, n)`."""
        return cls(*map(torch.stack, zip(*parts, strict=True)))


def screen(x: Tensor, obs: Observations, threshold: float, bound: float) -> Screening:
    """Screen draws x `(n, *event)`, one per observation.

    Args:
        threshold: The largest accepted χ² per measured value (`e_step.chi2`).
        bound: The largest accepted |x|.
    """
    parts = [_screen(x[rows], obs[rows], threshold, bound) for rows in parts_of(x)]
    return Screening(*map(torch.cat, zip(*parts, strict=True)))


def acceptable(x: Tensor, obs: Observations, threshold: float, bound: float) -> Tensor:
    """Return which draws pass all tests, `(n,)`; see `screen`."""
    return screen(x, obs, threshold, bound).good


def total_chi2(x: Tensor, obs: Observations) -> float:
    """Return the sum of χ² of draws x `(n, *event)` over the observations with measured values.

    For a channel, n times the ratio of `metrics.simulated_fit`; 0 if it is deterministic.
    """
    if isinstance(obs.A, Channel):
        return len(x) * simulated_fit(x.unsqueeze(0), obs).ratio if has_chi2(obs) else 0.0
    total = 0.0
    for rows in parts_of(x, SUMMED_BYTES):
        chi2 = [_chi2_or_zero(x[rows][part], obs[rows][part]) for part in parts_of(x[rows])]
        total += float(torch.cat(chi2).double().sum())
    return total


def has_chi2(obs: Observations) -> bool:
    """Whether draws can be compared with their observations by χ², or by simulation for a random channel."""
    return not isinstance(obs.A, Channel) or obs.A.random


def parts_of(x: Tensor, size: int | None = None) -> Iterator[slice]:
    """Split the rows of x `(n, *event)` into parts of `size` bytes, to limit the memory of temporary tensors.

    Default: `PART_BYTES`. On a GPU there is one part.
    """
    rows = max(1, (size or PART_BYTES) // max(1, x[0].numel() * x.element_size())) if x.device.type == "cpu" else len(x)
    return (slice(start, start + rows) for start in range(0, len(x), rows))


def _chi2_or_zero(x: Tensor, obs: Observations) -> Tensor:
    """χ² of each draw, `(n,)`; 0 if its observation has no measured values."""
    return torch.where(obs.empty(), 0, obs.chi2(x))


def _screen(x: Tensor, obs: Observations, threshold: float, bound: float) -> Screening:
    flat = x.flatten(1)
    finite = torch.isfinite(flat).all(1)
    clean = torch.where(finite.reshape(-1, *(1,) * (x.ndim - 1)), x, 0)
    inside = flat.nan_to_num(torch.inf).abs().amax(1) <= bound
    if isinstance(obs.A, Channel):
        return Screening(finite, inside, finite)
    counts = obs.counts()
    fits = (counts == 0) | (obs.chi2(clean) <= chi2_limit(counts, threshold))
    return Screening(finite, inside, fits)
