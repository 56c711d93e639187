"""Observations whose noise levels were unknown, with the levels that were estimated."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..core.errors import InputError
from ..files.reading import digest
from ..linalg import UnknownNoise
from ..operators import Operator
from .lazy import Shelf, StoredObservations, StoredOperators
from .observations import Observations


def level_count(obs: Observations) -> int:
    """The number of unknown noise levels; 0 if the noise is known."""
    cov = obs[:1].cov
    return cov.count if isinstance(cov, UnknownNoise) else 0


def with_levels(obs: Observations, sigma: Tensor) -> Observations:
    """The observations with known noise; those on disk are completed as they are read.

    Args:
        obs: Observations made with `sigma="learn"`.
        sigma: `(G,)`. The standard deviation of each group.

    Raises:
        InputError: If the noise is known, or there are other than G levels.
    """
    if not (count := level_count(obs)):
        raise InputError("the noise of these observations is known: they have no levels to set")
    sigma = torch.as_tensor(sigma, dtype=torch.float64)
    if sigma.shape != (count,) or not (torch.isfinite(sigma) & (sigma > 0)).all():
        raise InputError(f"needed: {count} positive noise levels, got {sigma.tolist()}")
    if isinstance(obs, StoredObservations):
        return StoredObservations(_LevelShelf(obs._shelf, sigma), obs._rows)
    cov = obs.cov
    assert isinstance(cov, UnknownNoise)
    new = copy.copy(obs)
    new.cov = cov.with_levels(sigma).bind(obs.y.ndim - 1).to(obs.y)
    return new


class _LevelShelf:
    """The observations of a shelf with known noise levels."""

    def __init__(self, shelf: Shelf, sigma: Tensor) -> None:
        self.shelf, self.sigma, self.x_shape = shelf, sigma, shelf.x_shape
        self.adaptive = getattr(shelf, "adaptive", False)
        self.digest = shelf.digest and digest(f"{shelf.digest} levels {sigma.tolist()}".encode())

    def __len__(self) -> int:
        return len(self.shelf)

    def read(self, rows: Tensor) -> Observations:
        return with_levels(self.shelf.read(rows), self.sigma)

    def counts(self, rows: Tensor) -> Tensor:
        return StoredObservations(self.shelf, rows).counts()

    def operators(self, rows: Tensor) -> Operator:
        return StoredOperators(self.shelf, rows)[torch.arange(len(rows))]
