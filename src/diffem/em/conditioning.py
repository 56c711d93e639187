r"""Training examples of a conditional network: a draw of x, and the network's input that describes a measurement of it.

A conditional network denoises the pivot m = x + C^½ z, C = (I/σ² + G)⁻¹ (`priors/preconditioning.py`). A fraction of
the examples receives the information G = AᵀΣ_y⁻¹A of a random observation. The others have G = 0, which trains the
prior. The operator must be that of *another* observation: a draw was made from its own y and agrees with it better than
with an independent measurement.

For a channel the network receives features of a y that is simulated from the draw, with the parameters of a random
observation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..files import memory
from ..observations import Observations
from ..observations.batches import in_parts
from ..observations.features import Features, features_of
from ..observations.information import information_of
from ..observations.krylov import Krylov
from ..observations.lazy import LazyObservations
from ..operators import Channel
from ..operators.spectrum import DiagonalInformation, Information
from ..priors.family import Family

TOGETHER = 1024  # largest number of observations whose information is computed at a time


class TrainingOperators:
    """The information G of all observations in units of a prior's scale, kept on the device if memory allows.

    Attributes:
        family: The properties that all operators share, which a conditional network depends on.
        resident: Whether all of G is on the device. Otherwise it is computed when used, and steps cannot be captured.
    """

    def __init__(self, obs: Observations, scale: float, device: torch.device) -> None:
        self._obs, self._scale, self._device = obs, scale, device
        first = self._information(obs[:1])
        self.family = Family.of(type(obs[:1].A).__name__, self._parts(), obs.x_shape)
        self.resident = not isinstance(first, Krylov) and self._may_stay(cast(DiagonalInformation, first))
        self._resident_information = self._gather(cast(DiagonalInformation, first)) if self.resident else None

    def __len__(self) -> int:
        return len(self._obs)

    def __getitem__(self, others: Tensor) -> Information:
        """Return G of the observations `others` `(n,)`; 0 for entries −1."""
        has_operator = others >= 0
        rows = others.clamp(min=0)
        if self._resident_information is None:
            information = self._information(self._obs[rows.cpu()].to(self._device))
            if isinstance(information, Krylov):
                return information.only(has_operator)
            G = self._compact(cast(DiagonalInformation, information))
            tensors = G.tensors()
        else:
            G = self._resident_information
            tensors = {name: t[rows] if len(t) > 1 else t for name, t in G.tensors().items()}
        gains = tensors["gains"] * has_operator.reshape(-1, *(1,) * (tensors["gains"].ndim - 1))
        return G.with_tensors({**tensors, "gains": gains})

    def information(self, x: Tensor, others: Tensor, position: Tensor, lap: int) -> Information:
        """Return G of the observations `others` `(n,)`, which does not depend on the samples; see `Simulations`."""
        return self[others]

    def _parts(self) -> Iterator[Information]:
        return (self._information(part) for part in in_parts(self._obs, TOGETHER))

    def _information(self, obs: Observations) -> Information:
        return information_of(obs).scaled(self._scale)

    def _may_stay(self, first: DiagonalInformation) -> bool:
        size = len(self._obs) * sum(t.numel() * t.element_size() for t in self._compact(first).tensors().values())
        return memory.may_stay(size, self._device)

    def _compact(self, information: DiagonalInformation) -> DiagonalInformation:
        """Keep one channel if all channels of a pixel are measured together."""
        if self.family.description != "pixels":
            return information
        return information.with_tensors({"gains": information.gains[:, :1]})

    def _gather(self, first: DiagonalInformation) -> DiagonalInformation:
        all_parts = (self._compact(cast(DiagonalInformation, part)) for part in self._parts())
        parts = [{name: t.to(self._device) for name, t in part.tensors().items()} for part in all_parts]
        # asked of two observations: a part may hold a single one, and its own G looks like one for all
        pair = cast(DiagonalInformation, self._information(self._obs[:2]))
        shared = all(len(t) == 1 for t in pair.tensors().values()) and len(self._obs) > 1
        tensors = parts[0] if shared else {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        return first.with_tensors(tensors)


class Simulations:
    """The channel of all observations, and the features of measurements that are simulated from draws.

    Args:
        scale: The prior's scale, in which the trainer gives its samples.

    Attributes:
        family: The features that the network depends on.
        resident: False: functions of the user cannot be captured in a CUDA graph.
    """

    resident = False

    def __init__(self, obs: LazyObservations, scale: float, seed: int, device: torch.device) -> None:
        self._obs, self._scale, self._seed = obs, scale, seed
        # with parameters per observation, on the device if memory allows; otherwise one channel for all
        self._channels = obs.operators().to(device) if obs[:1].A.per_observation() else None
        self._shared = obs[:1].A.to(device)
        self.family = Family.of_channel(Channel.__name__, map(features_of, in_parts(obs, TOGETHER)))

    def __len__(self) -> int:
        return len(self._obs)

    def information(self, x: Tensor, others: Tensor, position: Tensor, lap: int) -> Features:
        """Simulate measurements of samples and return their features.

        Args:
            x: (n, *event). Samples in units of the scale.
            others: (n,). The observations whose parameters are used; −1 for examples without a measurement.
            position: (n,). The addresses of the examples in the training.
            lap: The lap in the addresses.
        """
        A = self._shared if self._channels is None else self._channels[others.clamp(min=0)]
        assert isinstance(A, Channel)
        y = A.simulate(x * self._scale, Stream(self._seed, "simulated examples", lap), position)
        return Features(A.features(y), others >= 0)


Conditioning = TrainingOperators | Simulations  # what a conditional network is trained with
