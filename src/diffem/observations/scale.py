r"""The units of x, as observations alone show them.

With y = A x + e, entries of x that were independent and of size s would give E‖y‖² = s² tr AAᵀ + tr Σ_y, so

    s² = (Σ ‖y‖² − Σ tr Σ_y) / Σ tr AAᵀ.

Everything is a ratio of sums of squares: observations multiplied by c give c·s, and exactly so when c is a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..linalg.inner import accumulate_dtype
from ..operators.gain import mean_gain
from .batches import scanned_together
from .observations import Observations

PROBED = 1024  # observations the scale is estimated from, spread evenly over the set
NOISE_ONLY = 1e-4  # the least share of ‖y‖² taken for signal, where the stated noise accounts for all of it


def signal_scale(obs: Observations, probed: int = PROBED) -> float:
    """s, the root mean square of the entries of x; 1 when all measured values are 0."""
    energy, noise, gain = 0.0, 0.0, 0.0
    for part in _spread(obs, probed):
        squares, variances, traces = _energies(part)
        energy, noise, gain = energy + squares, noise + variances, gain + traces
    if gain == 0 or energy == 0:
        return 1.0
    return math.sqrt(max(energy - noise, NOISE_ONLY * energy) / gain)


def smallest_noise(obs: Observations, probed: int = PROBED) -> float:
    """The smallest standard deviation of the noise in the units of x: σ_y over the size of a row of A.

    Of correlated noise, that of the most precise combination of values. Infinite when nothing is measured.
    """
    lowest, gain, count = math.inf, 0.0, 0
    for part in _spread(obs, probed):
        variances = torch.where(part.empty(), torch.inf, part.noise.eigenvalue_floor())
        lowest = min(lowest, float(variances.min()))
        gain, count = gain + _energies(part)[2], count + int(part.counts().sum())
    return math.sqrt(lowest * count / gain) if gain > 0 else math.inf


def _spread(obs: Observations, probed: int) -> Iterator[Observations]:
    """Some observations, spread evenly, in parts that take little memory."""
    rows = torch.arange(min(len(obs), probed)) * len(obs) // min(len(obs), probed)
    return (obs[part] for part in rows.split(min(256, scanned_together(obs))))


def _energies(obs: Observations) -> tuple[float, float, float]:
    """Σ‖y‖², Σ tr Σ_y and Σ tr AAᵀ over the measured values."""
    variances = obs.cov.diagonal(tuple(obs.y.shape[1:]))
    gains, measured = mean_gain(obs.A, obs.y), obs.measured

    def total(values: Tensor) -> float:
        values = values.expand_as(obs.y) if measured is None else torch.where(measured, values, 0).expand_as(obs.y)
        return float(values.to(accumulate_dtype(values.device)).sum())

    return total(obs.y.to(accumulate_dtype(obs.y.device)).square()), total(variances), total(gains)
