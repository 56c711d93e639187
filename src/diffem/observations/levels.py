"""Observations whose noise levels were unknown, with the levels that were estimated."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..core.errors import InputError
from ..files.reading import digest
from ..linalg import UnknownNoise
from ..operators import Operator
from .lazy import LazyObservations, LazyOperators, Source
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
    if isinstance(obs, LazyObservations):
        return LazyObservations(_LevelSource(obs._source, sigma), obs._rows)
    cov = obs.cov
    assert isinstance(cov, UnknownNoise)
    new = copy.copy(obs)
    new.cov = cov.with_levels(sigma).bind(obs.y.ndim - 1).to(obs.y)
    return new


class _LevelSource:
    """The observations of a source with known noise levels."""

    def __init__(self, source: Source, sigma: Tensor) -> None:
        self.source, self.sigma, self.x_shape = source, sigma, source.x_shape
        self.adaptive = getattr(source, "adaptive", False)
        self.digest = source.digest and digest(f"{source.digest} levels {sigma.tolist()}".encode())

    def __len__(self) -> int:
        return len(self.source)

    def read(self, rows: Tensor) -> Observations:
        return with_levels(self.source.read(rows), self.sigma)

    def counts(self, rows: Tensor) -> Tensor:
        return LazyObservations(self.source, rows).counts()

    def operators(self, rows: Tensor) -> Operator:
        return LazyOperators(self.source, rows)[torch.arange(len(rows))]
