r"""The scale of x, estimated from observations alone.

If the entries of x were independent with variance s², y = A x + e would give E‖y‖² = s² tr AAᵀ + tr Σ_y, so

    s² = (Σ ‖y‖² − Σ tr Σ_y) / Σ tr AAᵀ.

Observations multiplied by c give c·s; this is exact if c is a power of two.
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

PROBED = 1024  # number of observations for the estimate, spread evenly over the set
NOISE_ONLY = 1e-4  # smallest share of ‖y‖² that counts as signal, if the stated noise explains all of it


def signal_scale(obs: Observations) -> float:
    """Estimate s, the root mean square of the entries of x; 1 if all measured values are 0."""
    energy, noise, gain = 0.0, 0.0, 0.0
    for part in spread(obs):
        squares, variances, traces = _energies(part)
        energy, noise, gain = energy + squares, noise + variances, gain + traces
    if gain == 0 or energy == 0:
        return 1.0
    return math.sqrt(max(energy - noise, NOISE_ONLY * energy) / gain)


def spread(obs: Observations) -> Iterator[Observations]:
    """Iterate over evenly spread observations, in parts that need little memory."""
    count = min(len(obs), PROBED)
    rows = torch.arange(count) * len(obs) // count
    return (obs[part] for part in rows.split(min(256, scanned_together(obs))))


def _energies(obs: Observations) -> tuple[float, float, float]:
    """Σ‖y‖², Σ tr Σ_y and Σ tr AAᵀ over the measured values."""
    squares, variances = obs.y.to(accumulate_dtype(obs.y.device)).square(), obs.cov.diagonal(tuple(obs.y.shape[1:]))
    return _total(obs, squares), _total(obs, variances), _total(obs, mean_gain(obs.A, obs.y))


def _total(obs: Observations, values: Tensor) -> float:
    """The sum over the measured values of all observations; values: broadcastable to y."""
    measured = obs.measured
    values = values.expand_as(obs.y) if measured is None else torch.where(measured, values, 0).expand_as(obs.y)
    return float(values.to(accumulate_dtype(values.device)).sum())
