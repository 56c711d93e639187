"""Batches of observations for algorithms with several passes over the data.

Batches within the budget of `memory.may_stay` are made in the first pass and kept; otherwise every pass reads them
again. Size, order and contents of the batches are the same in both cases, so sums over the observations are
bit-identical.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..files import memory
from .observations import Observations

SCANNED_BYTES = 1 << 23


def bytes_each(obs: Observations) -> int:
    """Bytes of one observation in memory: y, the parameters of A and the noise."""
    return sum(t.numel() * t.element_size() for t in obs[:1].read().tensors().values())


def scanned_together(obs: Observations) -> int:
    """Default batch size for passes that compute a few numbers per observation."""
    return max(1, SCANNED_BYTES // max(1, bytes_each(obs)))


def in_parts(obs: Observations, most: int | None = None) -> Iterator[Observations]:
    """Iterate over observations in parts, for one pass; a part has at most `most` of them."""
    together = scanned_together(obs) if most is None else min(scanned_together(obs), most)
    return (obs[start : start + together] for start in range(0, len(obs), together))


class Batches:
    """Batches of reduced observations (see `Observations.reduced`), each on `device` when it is used.

    Args:
        obs: The observations, in memory or on disk.
        size: Observations per batch. Default: `scanned_together(obs)`.
        device: Device of the batches. Default: that of the observations.
        order: (n,). Rows of `obs` in the order in which they are used. Default: 0 … n−1.
    """

    def __init__(
        self,
        obs: Observations,
        size: int | None = None,
        device: torch.device | None = None,
        order: Tensor | None = None,
    ) -> None:
        self.device = device or obs[:1].y.device
        self._obs, self._order = obs, order
        self._size = size or scanned_together(obs)
        self._keeps = memory.may_stay(len(obs) * bytes_each(obs), self.device)
        self._kept: list[Observations] = []

    def first(self) -> Observations:
        """The first observation alone."""
        return self._take(slice(0, 1))

    def __len__(self) -> int:
        return -(-len(self._obs) // self._size)

    def __iter__(self) -> Iterator[Observations]:
        for k in range(len(self)):
            if k < len(self._kept):
                yield self._kept[k]
                continue
            part = self._take(slice(k * self._size, (k + 1) * self._size))
            if self._keeps:
                self._kept.append(part)
            yield part

    def _take(self, rows: slice) -> Observations:
        part = self._obs[rows if self._order is None else self._order[rows]]
        return part.to(self.device).reduced()
