r"""Do masks and observations belong together? Two tests detect values that count as measured but were not.

- Repeated values. Unmeasured entries of y are often 0 or another constant such as −999, and continuous noise never
  produces the same value twice. The fraction of the most frequent value is computed for each entry of y, and its median
  over the entries is reported, so that entries that are always 0 do not count. In rounded data, only 0 counts, and must
  be more frequent than every other value. Many observations must contain it: a few clean samples may repeat values.
- Neighbours. If the mask was chosen independently of x, the size of a value does not depend on whether its neighbour is
  measured. If the masks are shifted by one entry, the neighbour decides whether the value was measured at all. Let u be
  the squared deviation of a value in units of its entry's variance, and g whether the neighbour is measured. The
  covariance of u and g within an observation has mean 0 under the correct model, which a z-test over the observations
  checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ...observations import Observations
from .scale import rounding_step, some_values

NUMBERS = 1 << 24  # values per part
CONTAINING = 0.25  # smallest fraction of the observations that contain this value
DISTINCT = 2  # how much more frequent than any other value one is that means "not measured"


@dataclass(frozen=True)
class MaskEvidence:
    """The results of both tests.

    Attributes:
        zeros: The fraction of exact zeros at a typical measured entry.
        filled: The value that seems to stand for "not measured"; None if there is none.
        share: The fraction of this value at a typical measured entry.
        neighbours: For each neighbour (axis of y, ±1), the z of its influence; empty if everything is measured.
    """

    zeros: float
    filled: float | None
    share: float
    neighbours: dict[tuple[int, int], float]


def mask_evidence(obs: Observations) -> MaskEvidence:
    """Run both tests."""
    filled = _filled(obs)
    zeros, share, mean, variance = _entries(obs, 0.0 if filled is None else filled)
    if obs.measured is None:
        return MaskEvidence(zeros, filled, share, {})
    axes = [-2, -1] if not obs.A.complex_output else [-3, -2]  # the last axis of complex measurements is (re, im)
    axes = [axis for axis in axes if -axis < obs.y.ndim and obs.y.shape[axis] > 1]
    places = [(axis, step) for axis in axes for step in (1, -1)]
    covariances: dict[tuple[int, int], list[Tensor]] = {place: [] for place in places}
    for y, measured in _parts(obs):
        inside = measured & (variance > 0)
        u = ((y - mean).square() / variance).where(inside, 0)
        for axis, step in places:
            # rolling back moves the neighbour at +1 to its entry
            g = measured.roll(-step, axis).double()
            covariances[axis, step].append(_covariance(u, g, inside))
    neighbours = {place: _z(torch.cat(parts)) for place, parts in covariances.items()}
    return MaskEvidence(zeros, filled, share, neighbours)


def _filled(obs: Observations) -> float | None:
    """Return the value that is at least `DISTINCT` times as frequent as every other, if any; in rounded data only 0."""
    values, counts = some_values(obs).unique(return_counts=True)
    most = counts.topk(min(2, len(counts)))
    if len(counts) == 0 or (len(counts) > 1 and int(most.values[0]) < DISTINCT * int(most.values[1])):
        return None
    value = float(values[most.indices[0]])
    containing = sum(int((measured & (y == value)).flatten(1).any(1).sum()) for y, measured in _parts(obs))
    if containing < CONTAINING * len(obs) or (value != 0 and rounding_step(obs) is not None):
        return None
    return value


def _parts(obs: Observations) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield y in float64 and its mask, some observations at a time."""
    batch = max(1, NUMBERS // obs.y[0].numel())
    for start in range(0, len(obs), batch):
        part = obs[start : start + batch]
        measured = torch.ones_like(part.y, dtype=torch.bool) if part.measured is None else part.measured
        yield part.y.double(), measured.expand_as(part.y)


def _entries(obs: Observations, value: float) -> tuple[float, float, Tensor, Tensor]:
    """Return the median fractions of zeros and of a value, and mean and variance of the measured values per entry."""
    count, zeros, same, total, square = (torch.zeros_like(obs.y[0], dtype=torch.float64) for _ in range(5))
    for y, measured in _parts(obs):
        count += measured.sum(0)
        zeros += (measured & (y == 0)).sum(0)
        same += (measured & (y == value)).sum(0)
        total += y.where(measured, 0).sum(0)
    mean = total / count.clamp(min=1)
    for y, measured in _parts(obs):
        square += (y - mean).square().where(measured, 0).sum(0)
    seen = count > 0
    shares = [float((k[seen] / count[seen]).median()) if bool(seen.any()) else 0.0 for k in (zeros, same)]
    return shares[0], shares[1], mean, square / count.clamp(min=1)


def _covariance(u: Tensor, g: Tensor, inside: Tensor) -> Tensor:
    """Return Σ (u − ū)(g − ḡ) over the entries inside, per observation, `(n,)`; u is 0 outside."""
    u, g, inside = u.flatten(1), g.flatten(1), inside.flatten(1)
    count = inside.sum(1).clamp(min=1)
    g = g.where(inside, 0)
    return (u * g).sum(1) - u.sum(1) * g.sum(1) / count


def _z(values: Tensor) -> float:
    spread = float(values.square().sum().sqrt())
    return float(values.sum()) / spread if spread > 0 else 0.0
