"""Observations whose noise levels were unknown, with the levels that were estimated."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..linalg import UnknownNoise
from ..operators.learned import is_learned
from .lazy import LazyObservations
from .noise import in_dtype_of
from .observations import Observations


def level_count(obs: Observations) -> int:
    """The number of unknown noise levels; 0 if the noise is known."""
    cov = obs[:1].cov
    return cov.count if isinstance(cov, UnknownNoise) else 0


def has_unknowns(obs: Observations) -> bool:
    """Whether noise levels or parameters of the operators are unknown and to be estimated."""
    first = obs[:1]
    return isinstance(first.cov, UnknownNoise) or is_learned(first.A)


def with_levels(obs: Observations, sigma: Tensor) -> Observations:
    """The observations with known noise; those on disk are completed as they are read.

    Args:
        obs: Observations made with `sigma="learn"`.
        sigma: `(G,)`. The standard deviation of each group.

    Raises:
        InputError: If the noise is known, there are other than G levels, or the dtype of y cannot represent a variance.
    """
    if not (count := level_count(obs)):
        raise InputError("the noise of these observations is known: they have no levels to set")
    sigma = torch.as_tensor(sigma, dtype=torch.float64)
    if sigma.shape != (count,) or not (torch.isfinite(sigma) & (sigma > 0)).all():
        raise InputError(f"needed: {count_of(count, 'positive noise level')}, got {sigma.tolist()}")
    if isinstance(obs, LazyObservations):
        return obs.changed(lambda read: with_levels(read, sigma), f"levels {sigma.tolist()}")
    cov = obs.cov
    assert isinstance(cov, UnknownNoise)
    new = copy.copy(obs)
    new.cov = in_dtype_of(cov.with_levels(sigma).bind(obs.y.ndim - 1), obs.y)
    return new
