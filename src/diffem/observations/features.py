r"""The information of an observation of a channel: features of y, in place of G = AᵀΣ_y⁻¹A."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..operators import Channel
from ..operators.spectrum import Function
from .observations import Observations


@dataclass(frozen=True)
class Features:
    """The features of n observations of a channel, in the place of G = AᵀΣ_y⁻¹A.

    A channel gives no linear information about x, so G is 0, and functions of G are evaluated at 0.

    Attributes:
        values: `(n, *features)`.
        known: `(n,)`. Whether an example has an observation; the others are examples of the prior.
    """

    values: Tensor
    known: Tensor

    kind = "features"

    @property
    def maps(self) -> Tensor:
        """The features as `(n, channels, ...)`: images keep their last two axes, vectors their numbers as channels."""
        values = self.values
        return values if values.ndim == 2 else values.reshape(len(values), -1, *values.shape[-2:])

    def combine(self, *terms: tuple[Function, Tensor]) -> Tensor:
        nothing = [function(x.new_zeros(len(x), *(1,) * (x.ndim - 1))) * x for function, x in terms]
        return functools.reduce(torch.add, nothing)

    def scaled(self, scale: float) -> Features:
        return self

    def isotropic(self) -> None:
        return None

    def extent(self) -> tuple[Tensor, Tensor]:
        return torch.zeros(0), torch.zeros(0)


def features_of(obs: Observations) -> Features:
    """The features of observations of a channel."""
    assert isinstance(obs.A, Channel)
    return Features(obs.A.features(obs.y), torch.ones(len(obs), dtype=torch.bool, device=obs.y.device))


def is_simulated(obs: Observations) -> bool:
    """Whether these are observations of a `Channel`, which can only be simulated."""
    return isinstance(obs[:1].A, Channel)


def require_linear_gaussian(obs: Observations, who: str, instead: str) -> None:
    """Raise an InputError for observations of a channel.

    Args:
        who: What needs y = A x + e with Gaussian noise.
        instead: What works for a channel.
    """
    if is_simulated(obs):
        raise InputError(
            f"{who} needs observations y = A x + e with Gaussian noise; these come from a Channel, which can only be "
            f"simulated. {instead}"
        )
