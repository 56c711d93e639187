"""Training examples: every random number is addressed by the position of its example, so a resumed training continues exactly where it was."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..priors import DiffusionPrior
from ..processes import ALONE, Processes
from ..randomness import Stream
from .augment import Augment


class Examples:
    """Which draws, noise levels and noise every training step uses: a function of the step alone. σ is log-linear in t ~ Beta(3, 3), the
    median of five uniform numbers.

    Of several processes each takes its part of every batch, `[first, last)`.
    """

    def __init__(
        self,
        draws: Tensor,
        batch: int,
        prior: DiffusionPrior,
        augment: Augment,
        stream: Stream,
        processes: Processes = ALONE,
    ) -> None:
        self.draws, self.batch, self.augment, self.stream = draws, batch, augment, stream
        self.first, self.last = (batch * r // processes.count for r in (processes.rank, processes.rank + 1))
        self.log_min, self.log_max = math.log(prior.sigma_min), math.log(prior.sigma_max)
        self._orders: dict[int, Tensor] = {}

    def rows(self, position: Tensor) -> Tensor:
        """The draw at each position of an endless walk through reshuffled epochs: none is ever left out."""
        n = len(self.draws)
        epoch = position // n
        first, last = int(position[0]) // n, int(position[-1]) // n
        self._orders = {
            e: self._orders[e] if e in self._orders else self.stream.permutation(n, e, self.draws.device)
            for e in range(first, last + 1)
        }
        orders = torch.stack([self._orders[e] for e in range(first, last + 1)])
        return orders[epoch - first, position % n]

    def block(self, start: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Steps start … start+count−1: rows `(count, B)`, log σ `(count, B)`, z `(count, B, *event)`, augmentation uniforms."""
        device, shape = self.draws.device, tuple(self.draws.shape[1:])
        position = torch.arange(start * self.batch, (start + count) * self.batch, device=device)
        mine = self.last - self.first
        position = position.reshape(count, self.batch)[:, self.first : self.last].flatten()
        uniforms = self.stream.uniform(position, (5 + self.augment.uniforms,), step=1, dtype=self.draws.dtype)
        t = uniforms[:, :5].median(1).values
        log_sigma = self.log_min + (self.log_max - self.log_min) * t
        z = self.stream.normal(position, shape, step=2, dtype=self.draws.dtype)

        def split(v: Tensor) -> Tensor:
            return v.reshape(count, mine, *v.shape[1:])

        return split(self.rows(position)), split(log_sigma), split(z), split(uniforms[:, 5:])
