"""Training examples. Every random number is addressed by the position of its example, so training resumes exactly."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.processes import ALONE, Processes
from ..core.randomness import Stream
from ..observations.lazy import LazyObservations
from ..runs.draws import DrawStore, StoredDraws
from .augment import Augment
from .noise_law import NoiseLaw


class Examples:
    """The draws, noise levels and noise of every training step, as a function of the step.

    Args:
        draws: (n, *event). The draws.
        batch: The number of examples per step, over all processes.
        law: The distribution of the noise levels.
        augment: The augmentations.
        stream: The random numbers of the training.
        processes: This process; each process takes its part `[first, last)` of every batch.
        conditioned: The fraction of the examples that receive the operator of an observation.
        observations: The number of observations to take these operators from.
        repeats: (draws,). How often an epoch uses each draw. Default: once.

    Attributes:
        attempt: A part of the addresses; another number gives other noise levels, noise and operators.
    """

    def __init__(
        self,
        draws: Tensor | StoredDraws,
        batch: int,
        law: NoiseLaw,
        augment: Augment,
        stream: Stream,
        processes: Processes = ALONE,
        conditioned: float = 0.0,
        observations: int = 0,
        repeats: Tensor | None = None,
    ) -> None:
        self.conditioned, self.observations, self.attempt = conditioned, observations, 0
        self.draws, self.batch, self.law, self.augment, self.stream = draws, batch, law, augment, stream
        self.first, self.last = (batch * r // processes.count for r in (processes.rank, processes.rank + 1))
        self._orders: dict[int, Tensor] = {}
        # the draws of an epoch, each as often as its weight
        self.epoch = (
            None if repeats is None else torch.arange(len(draws)).repeat_interleave(repeats.cpu()).to(draws.device)
        )

    def rows(self, position: Tensor) -> Tensor:
        """Return the draw at each position of an endless sequence of shuffled epochs."""
        n = len(self.draws) if self.epoch is None else len(self.epoch)
        epoch = position // n
        first, last = int(position[0]) // n, int(position[-1]) // n
        self._orders = {
            e: self._orders[e] if e in self._orders else self.stream.permutation(n, e, self.draws.device)
            for e in range(first, last + 1)
        }
        orders = torch.stack([self._orders[e] for e in range(first, last + 1)])
        rows = orders[epoch - first, position % n]
        return rows if self.epoch is None else self.epoch[rows]

    def block(self, start: int, count: int) -> tuple[Tensor, ...]:
        """Return the examples of the steps start … start+count−1.

        Returns:
            rows `(count, B)`, log σ `(count, B)` relative to the scale, z `(count, B, *event)`, the uniform numbers of
            the augmentations, the observation whose operator an example receives `(count, B)`, −1 for none, and the
            positions of the examples `(count, B)`. Draws on disk are read for all steps together and returned last,
            `(count, B, *event)`.
        """
        device, shape = self.draws.device, tuple(self.draws.shape[1:])
        position = torch.arange(start * self.batch, (start + count) * self.batch, device=device)
        mine = self.last - self.first
        position = position.reshape(count, self.batch)[:, self.first : self.last].flatten()
        count_u = self.law.uniforms + self.augment.uniforms
        attempt = torch.full_like(position, self.attempt)
        uniforms = self.stream.uniform(position, (count_u,), step=1, draw=attempt, dtype=self.draws.dtype)
        for_law, for_augment = uniforms.tensor_split([self.law.uniforms], 1)
        z = self.stream.normal(position, shape, step=2, draw=attempt, dtype=self.draws.dtype)

        def split(v: Tensor) -> Tensor:
            return v.reshape(count, mine, *v.shape[1:])

        rows = split(self.rows(position))
        levels, others = split(self.law.log_sigma(for_law)), split(self.others(position))
        block = rows, levels, split(z), split(for_augment), others, split(position)
        return (*block, self.draws[rows]) if isinstance(self.draws, StoredDraws) else block

    def others(self, position: Tensor) -> Tensor:
        """Return the observation whose operator the example at each position receives, −1 for none."""
        if not self.conditioned:
            return torch.full_like(position, -1)
        attempt = torch.full_like(position, self.attempt)
        u = self.stream.uniform(position, (2,), step=3, draw=attempt, dtype=torch.float64)
        chosen = (u[:, 1] * self.observations).long().clamp(max=self.observations - 1)
        return torch.where(u[:, 0] < self.conditioned, chosen, -1)

    def samples(self, rows: Tensor, u: Tensor, read: Sequence[Tensor] = ()) -> Tensor:
        """Return the augmented draws of one step, `(B, *event)`; read: the draws, if `block` read them from disk."""
        x = read[0] if isinstance(self.draws, StoredDraws) else self.draws[rows]
        return self.augment(x, u)


def draw_repeats(obs: LazyObservations, store: DrawStore, draws: int) -> Tensor | None:
    """How often an epoch uses each of `draws` draws, `(draws,)`; None if the observations have no weights.

    Args:
        store: Their draws.
    """
    if obs[:1].read().repeats is None:
        return None
    repeats = torch.cat([part.repeats for part in obs.parts() if part.repeats is not None])
    return repeats[store.owners(draws // len(obs))]
