r"""Training examples of a conditional network for a channel: a draw x, and features of a y that is simulated from it.

The network learns E[x | x_t, features(y)] from pairs of a draw x and a *fresh* y' ~ p(y | x); the y that x was drawn
from agrees with it better than an independent measurement. Parameters of the channel are those of a random observation,
as the operators of others in `conditioning.py`. Examples without y' train the prior.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..observations.batches import scanned_together
from ..observations.features import Features, features_of
from ..observations.lazy import LazyObservations
from ..operators import Channel
from ..priors.family import Family


class Simulations:
    """The channel of all observations, and the features of measurements that are simulated from draws.

    Args:
        obs: The training observations.
        scale: The prior's scale, in which the trainer gives its samples.
        seed: The seed of the run.
        device: The device.

    Attributes:
        family: The features that the network depends on.
        resident: False: functions of the user cannot be captured in a CUDA graph.
    """

    resident = False

    def __init__(self, obs: LazyObservations, scale: float, seed: int, device: torch.device) -> None:
        self._obs, self._scale, self._seed = obs, scale, seed
        # with parameters of their own, on the device if memory allows; otherwise one channel for all
        self._channels = obs.operators().to(device) if obs[:1].A.per_observation() else None
        self._shared = obs[:1].A.to(device)
        self.family = Family.of_channel(Channel.__name__, self._parts())

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

    def _parts(self) -> Iterator[Features]:
        together = min(scanned_together(self._obs), 1024)
        for start in range(0, len(self._obs), together):
            yield features_of(self._obs[start : start + together])
