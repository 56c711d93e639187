r"""The base of all samplers: a table of coefficients, a step, and the loop that draws with them.

A sampler turns noise x₁ ~ N(μ, σ₁²I) into a draw by calling a denoiser D(x_t, σ_t) = E[x | x_t] along decreasing noise
levels. A draw takes `steps` steps from σ_max to σ_min and ends with one more denoising at σ_min, so a sampler with e
evaluations per step makes e·steps + 1 evaluations. That last denoising is not a step: corrections that are scaled to
the effect of a step must not be applied in it, so a posterior method chooses its own (`Posterior.finish`).

All coefficients of a step are computed once, in float64, as one row of a table. The step itself only multiplies and
adds tensors, does not synchronise with the device, and keeps its memory in a tuple of tensors, so it can run eagerly or
be captured as a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.cuda_graphs import Snapshot, State, no_snapshot, replay
from ..core.errors import InputError
from ..core.progress import Progress
from ..core.randomness import Stream

Denoise: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # x_t (n, *event), sigma () -> (n, *event)
Noise: TypeAlias = Callable[[int], Tensor]  # index of a noise within the step -> (n, *event) standard normal
Normal: TypeAlias = Callable[[int | Tensor], Tensor]  # address of a noise -> (n, *event) standard normal


class Guide(NamedTuple):
    """The denoisers of prior and posterior at x_t, and the approximate likelihood of x_t."""

    prior: Tensor  # (n, *event) E[x | x_t]
    guided: Tensor  # (n, *event) E[x | x_t, y] as the posterior method estimates it
    log_twist: Tensor  # (n,) log q(y | x_t), up to a constant per observation


class FinalDenoising(NamedTuple):
    """The last denoising by the prior, and the likelihood of its result."""

    x: Tensor  # (n, *event) D(x_t), which the draw returns
    log_likelihood: Tensor  # (n,) log p(y | x), up to a constant per observation


@dataclass(frozen=True)
class Target:
    """What a sampler draws from, a prior or a posterior, for one batch of rows.

    Attributes:
        denoise: E[x | x_t] or E[x | x_t, y].
        finish: The last denoising of a draw.
        guide: The likelihood besides the denoisers, for samplers with `needs_likelihood`. None for a prior.
        end: The last denoising and its likelihood, for the same samplers.
        snapshot: Saves the statistics that the functions above update (see `core.cuda_graphs.Snapshot`).
    """

    denoise: Denoise
    finish: Denoise
    guide: Callable[[Tensor, Tensor], Guide] | None = None
    end: Callable[[Tensor, Tensor], FinalDenoising] | None = None
    snapshot: Snapshot = no_snapshot


@dataclass
class DrawBatch:
    """The draws of one batch, and the history of their particles."""

    x: Tensor  # (n, picks, *event)
    effective: Tensor  # (n,) smallest effective number of particles of any step; 0 for a sampler without particles
    resamplings: Tensor  # (n,) number of times that the particles were resampled


class Sampler(ABC):
    """Base of the samplers.

    A subclass implements `table`, `start` and `step`; a sampler with a different loop overrides `draw`.

    Attributes:
        evaluations_per_step: Denoiser calls in a step.
        noises_per_step: Fresh standard normal tensors in a step.
        particles: Rows of the batch that one set of draws takes.
        picks: Draws that are picked from one set of particles.
        needs_likelihood: Whether `draw` calls `Target.guide` and `Target.end`.
    """

    name: ClassVar[str]
    evaluations_per_step: int
    noises_per_step: int
    particles: int = 1
    picks: int = 1
    needs_likelihood: ClassVar[bool] = False

    def phases(self, sigmas: Tensor) -> list[tuple[Sampler, Tensor]]:
        """Split the noise levels `(steps + 1,)` into segments and name the sampler of each.

        All must use the same state layout.
        """
        return [(self, sigmas)]

    def response(self, h: float) -> float:
        """κ = ∂x_s/∂x̂ of a step with h = log σ_t/σ_s: the same change of x̂ in all evaluations moves x_s κ times as far.

        Default: 1 − σ_s/σ_t, that of a deterministic step.
        """
        return -math.expm1(-h)

    @abstractmethod
    def table(self, sigmas: Tensor) -> Tensor:
        """Compute the coefficients `(steps, c)` in float64 for decreasing noise levels `(steps + 1,)`."""

    @abstractmethod
    def start(self, x: Tensor) -> State:
        """Make the state before the first step from x `(n, *event)`."""

    @abstractmethod
    def step(self, denoise: Denoise, state: State, row: Tensor, noise: Noise) -> State:
        """Move the state from level t to the next level s. row: `(c,)` in the dtype and on the device of x."""

    def numbered_step(
        self, denoise: Denoise, normal: Normal, first: int, state: State, i: int | Tensor, row: Tensor
    ) -> State:
        """Make step i of a table. The noises of all its steps have consecutive addresses, beginning at `first`."""
        address = first + i * self.noises_per_step
        return self.step(denoise, state, row, lambda slot: normal(address + slot))

    def draw(
        self,
        target: Target,
        mean: Tensor,
        index: Tensor,
        sigmas: Tensor,
        stream: Stream,
        *,
        draws: Tensor | None = None,
        progress: Progress | None = None,
        captured: bool = False,
    ) -> DrawBatch:
        """Draw one batch.

        Args:
            target: The denoisers, for `n · particles` rows.
            mean: (*event). Mean of the starting noise; the draws have its dtype and device.
            index: (n,). Addresses of the samples in the random stream.
            sigmas: (steps + 1,). Decreasing noise levels.
            stream: Source of the random numbers.
            draws: (n,). Draw numbers, the second part of the address. Default: 0.
            progress: Progress bar, advanced by the rows of the batch at each step.
            captured: On a GPU, capture one step as a CUDA graph and replay it. This is faster for small networks, whose
                kernels are shorter than their launches.
        """
        require_levels(sigmas)
        index = index.to(mean.device)
        draws = None if draws is None else draws.to(mean.device)
        shape = tuple(mean.shape)

        def normal(step: int | Tensor) -> Tensor:
            return stream.normal(index, shape, step=step, draw=draws, dtype=mean.dtype)

        state = self.start(mean + sigmas[0].to(mean) * normal(0))
        first = 1  # address 0 was the start; every step has its own `noises_per_step` addresses
        for phase, levels in self.phases(sigmas.double()):
            table = phase.table(levels).to(mean)
            step = partial(phase.numbered_step, target.denoise, normal, first)
            state = walk(step, state, table, len(index), captured=captured, progress=progress, snapshot=target.snapshot)
            first += len(table) * phase.noises_per_step
        x = target.finish(state[0], sigmas[-1].to(mean))
        none = torch.zeros(len(index), device=mean.device)
        return DrawBatch(x.unsqueeze(1), none, none.long())


def require_levels(sigmas: Tensor) -> None:
    """Raise InputError unless `sigmas` are decreasing positive noise levels."""
    if sigmas.ndim != 1 or len(sigmas) < 2 or not (sigmas[1:] < sigmas[:-1]).all() or not sigmas[-1] > 0:
        raise InputError(
            f"sigmas must be at least two decreasing positive noise levels, got shape {tuple(sigmas.shape)} with "
            f"{sigmas.flatten()[:4].tolist()} …"
        )


def walk(
    step: Callable[[State, int | Tensor, Tensor], State],
    state: State,
    table: Tensor,
    rows: int,
    *,
    captured: bool,
    progress: Progress | None,
    snapshot: Snapshot,
) -> State:
    """Run all steps of a table `(steps, c)` on a state of `rows` rows, eagerly or by replaying a CUDA graph."""
    if captured:
        return replay(step, state, table, progress, snapshot)
    for i in range(len(table)):
        state = step(state, i, table[i])
        if progress is not None:
            progress.advance(rows)
    return state
