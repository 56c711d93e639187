r"""Random numbers for a function of a user, with one address per sample.

A simulator receives an object `rng` in place of a generator. Row i of everything that `rng` returns depends on the
address of sample i and on how often `rng` was called before, never on the other samples: the same sample has the same
random numbers in every batch, in every process and after an interruption.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .counting import count_of
from .errors import InputError
from .randomness import Stream

SEARCHED = 64.0  # Poisson rates above this are inverted by bisection, which costs more per number


class RandomNumbers:
    """The random numbers of n samples.

    Args:
        stream: The purpose and lap of the numbers.
        index: (n,). The address of every sample.
        draw: (n,). A second part of the address. Default: 0.
        dtype: The dtype of the numbers.
    """

    def __init__(
        self, stream: Stream, index: Tensor, draw: Tensor | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        self._stream, self._index, self._dtype = stream, index, dtype
        self._draw = torch.zeros_like(index) if draw is None else draw
        self._calls = 0

    def __len__(self) -> int:
        return len(self._index)

    def uniform(self, *shape: int) -> Tensor:
        """Uniform numbers strictly inside (0, 1), `(n, *shape)`."""
        return self._stream.uniform(self._index, shape, step=self._next(), draw=self._draw, dtype=self._dtype)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers, `(n, *shape)`."""
        return self._stream.normal(self._index, shape, step=self._next(), draw=self._draw, dtype=self._dtype)

    def poisson(self, rate: Tensor) -> Tensor:
        """Poisson counts of the shape of `rate` `(n, *shape)`, by inversion of the cumulative distribution.

        Raises:
            InputError: If a rate is negative or not finite. Draws of x may be slightly negative: `x.clamp(min=0)`.
        """
        if len(rate) != len(self):
            raise InputError(
                f"rng.poisson needs rates for {count_of(len(self), 'sample')}, got shape {tuple(rate.shape)}"
            )
        if not bool((torch.isfinite(rate) & (rate >= 0)).all()):
            raise InputError(
                "rng.poisson needs finite rates of at least 0; samples x may be negative, for example "
                "rng.poisson(peak * x.clamp(min=0))"
            )
        u = self._stream.uniform(
            self._index, tuple(rate.shape[1:]), step=self._next(), draw=self._draw, dtype=torch.float64
        )
        return _inverted(rate.double(), u).to(rate.dtype)

    def seeds(self) -> Tensor:
        """One whole number below 2⁴⁸ per sample, `(n,)`, to seed generators of other libraries, sample by sample."""
        u = self._stream.uniform(self._index, (2,), step=self._next(), draw=self._draw, dtype=torch.float64)
        high, low = (u * (1 << 24)).long().unbind(1)
        return (high << 24) + low

    def _next(self) -> int:
        self._calls += 1
        return self._calls - 1


def _inverted(rate: Tensor, u: Tensor) -> Tensor:
    """The smallest k with P(N ≤ k) ≥ u, for N ~ Poisson(rate); both `(n, ...)`, in float64."""
    small = rate <= SEARCHED
    count = _searched(torch.where(small, rate, 0), torch.where(small, u, 0))
    return count if bool(small.all()) else torch.where(small, count, _bisected(torch.where(small, 1, rate), u))


def _searched(rate: Tensor, u: Tensor) -> Tensor:
    """Add probabilities from k = 0 on."""
    mass = torch.exp(-rate)
    below, count = mass.clone(), torch.zeros_like(rate)
    k = 0
    while bool((open_ := below < u).any()) and k < 4 * SEARCHED:  # the sum may stay below u by rounding
        k += 1
        mass = mass * rate / k
        count += open_
        below += mass
    return count


def _bisected(rate: Tensor, u: Tensor) -> Tensor:
    """Bisect k between 0 and far beyond the rate, by P(N ≤ k) = Γ(k + 1, rate)/Γ(k + 1)."""
    low, high = torch.full_like(rate, -1), (2 * rate + 64).ceil()
    while bool((high - low > 1).any()):
        middle = ((low + high) / 2).floor()
        enough = torch.special.gammaincc(middle + 1, rate) >= u
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    return high
