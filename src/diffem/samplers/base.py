r"""What a sampler is: a table of coefficients and a step.

A sampler turns noise x₁ ~ N(μ, σ₁²I) into a draw by calling a denoiser D(x_t, σ_t) = E[x | x_t] along decreasing noise levels.
All numbers a step needs are computed once, in float64, as one row of a table; the step itself only multiplies and adds tensors,
reads nothing back from the device and keeps its memory in a tuple of tensors, so that it can run eagerly or be captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Protocol, TypeAlias

from torch import Tensor

from ..core.cuda_graphs import State

Denoise: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # x_t (n, *event), sigma () -> (n, *event)
Noise: TypeAlias = Callable[[int], Tensor]  # slot of this step -> (n, *event) standard normal


class Sampler(Protocol):
    name: ClassVar[str]
    evaluations_per_step: int  # denoiser calls in a step
    noises_per_step: int  # fresh normals in a step

    def phases(self, sigmas: Tensor) -> list[tuple[Sampler, Tensor]]:
        """Who takes which of the decreasing noise levels `(steps + 1,)`: itself all of them, or another the last; states must fit."""
        ...

    def table(self, sigmas: Tensor) -> Tensor:
        """The coefficients, `(steps, c)` float64, for decreasing noise levels `(steps + 1,)`."""
        ...

    def start(self, x: Tensor) -> State:
        """The state before the first step. x: `(n, *event)`."""
        ...

    def step(self, denoise: Denoise, state: State, row: Tensor, noise: Noise) -> State:
        """From level t to the next level s. row: `(c,)` in the dtype and on the device of x."""
        ...
