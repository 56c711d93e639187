"""The split of a run's observations into training and held-out ones, and the choice of those in its pictures."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..observations import Observations
from ..observations.lazy import LazyObservations, as_lazy

PICTURED = 8  # observations in the pictures of the report
PREVIEW = 256  # observations for the simulations of a run without held-out observations


def split(n: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Return the indices of training and held-out observations. The latter are evenly spaced."""
    chosen = torch.zeros(n, dtype=torch.bool)
    chosen[evenly_spaced(n, held_out)] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


def evenly_spaced(n: int, count: int) -> Tensor:
    """Return the indices of `count` of n observations (all, if n is less), evenly spaced because data may be sorted."""
    count = min(count, n)
    return torch.arange(count) * n // max(1, count)


def in_pictures(n: int, held_out: int) -> Tensor:
    """Return the indices of the observations in the pictures, at most eight: held-out ones if there are any."""
    train, held = split(n, held_out)
    return (held if len(held) else train)[:PICTURED]


@dataclass(frozen=True)
class SplitObservations:
    """The observations of a run, split into training and held-out ones.

    Attributes:
        train: The training observations.
        index: (n,). Their positions among all observations, which address their random numbers.
        preview: The observations for pictures and simulations, on the device: the held-out ones if there are any.
        held_out: The held-out observations with measured values, on the device; None if there are none.
        held_index: The positions of `held_out` among all observations.
    """

    train: LazyObservations
    index: Tensor
    preview: Observations
    held_out: Observations | None
    held_index: Tensor

    @classmethod
    def of(cls, obs: Observations, held_out: int, device: torch.device) -> SplitObservations:
        """Split observations; `held_out` is the number of held-out ones."""
        index, held = split(len(obs), held_out)
        if len(held) == 0:
            first = torch.arange(min(PICTURED, len(obs)))  # see `in_pictures`
            preview = obs[torch.cat([first, evenly_spaced(len(obs), PREVIEW)]).unique()].to(device)
            return cls(as_lazy(obs)[index], index, preview, None, held)
        preview = obs[held].to(device)
        return cls(as_lazy(obs)[index], index, preview, preview.informative(), held[~preview.empty().cpu()])
