r"""The loop every draw goes through: start, steps, last denoising; addressed noise; micro-batches; a progress bar.

A draw starts at x₁ ~ N(μ, σ₁²I), μ being the prior's mean, takes `steps` steps to σ_min and ends with one more denoising there, so
a sampler with e evaluations per step makes e·steps + 1. That last denoising is no step: a correction that is scaled to the effect of a
step must not be applied in it, so a posterior method chooses its own (`Posterior.finish`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..core.cuda_graphs import Bookmark, State, no_bookmark, walk
from ..core.errors import InputError
from ..core.progress import Progress
from ..core.randomness import Stream
from .base import Denoise, Sampler
from .ddim import DDIM
from .heun import Heun
from .pc import PredictorCorrector
from .tds import TDS

SAMPLERS: dict[str, Callable[..., Sampler]] = {
    "ddim": lambda eta=0.0: DDIM(eta),
    "ddpm": lambda: DDIM(1.0),
    "ddim2": lambda eta=0.0: DDIM(eta, order=2),
    "ddpm2": lambda: DDIM(1.0, order=2),
    "heun": Heun,
    "pc": PredictorCorrector,
    "tds": TDS,
}
DEFAULT_SAMPLER, DEFAULT_STEPS = "ddpm2", 128


def get_sampler(sampler: str | Sampler, **options: Any) -> Sampler:
    """A sampler by name with its options, or one already made."""
    if not isinstance(sampler, str):
        return sampler
    if sampler not in SAMPLERS:
        raise InputError(f"unknown sampler {sampler!r}; known: {', '.join(SAMPLERS)}")
    try:
        return SAMPLERS[sampler](**options)
    except TypeError as error:
        raise InputError(f"sampler {sampler!r} does not take these options: {options} ({error})") from None


@torch.no_grad()
def draw(
    denoise: Denoise,
    mean: Tensor,
    index: Tensor,
    sigmas: Tensor,
    sampler: Sampler,
    stream: Stream,
    *,
    finish: Denoise | None = None,
    draws: Tensor | None = None,
    progress: Progress | None = None,
    captured: bool = False,
    bookmark: Bookmark = no_bookmark,
) -> Tensor:
    """One micro-batch of draws, `(n, *event)`.

    denoise: D(x_t `(n, *event)`, sigma `()`), a prior's or a posterior's. finish: the last denoising; `denoise` by default.
    mean: `(*event)`, also gives event shape, dtype and device. index: `(n,)` sample addresses. draws: `(n,)` draw numbers.
    sigmas: `(steps + 1,)` decreasing.
    captured: on a GPU, capture one step and replay it: for small networks, whose kernels are shorter than their launches.
    bookmark: for a denoiser that counts its calls, see `capture.Bookmark`.
    """
    if sigmas.ndim != 1 or len(sigmas) < 2 or not (sigmas[1:] < sigmas[:-1]).all() or not sigmas[-1] > 0:
        raise InputError("sigmas must be at least two decreasing positive noise levels")
    index = index.to(mean.device)
    draws = None if draws is None else draws.to(mean.device)
    shape = tuple(mean.shape)

    def normal(step: int | Tensor) -> Tensor:
        return stream.normal(index, shape, step=step, draw=draws, dtype=mean.dtype)

    state = sampler.start(mean + sigmas[0].to(mean) * normal(0))
    first = 1  # address 0 was the start; every step owns as many addresses as it can use
    for phase, levels in sampler.phases(sigmas.double()):

        def step(state: State, i: int | Tensor, row: Tensor, phase: Sampler = phase, first: int = first) -> State:
            address = first + i * phase.noises_per_step
            return phase.step(denoise, state, row, lambda slot: normal(address + slot))

        table = phase.table(levels).to(mean)
        state = walk(step, state, table, len(index), captured=captured, progress=progress, bookmark=bookmark)
        first += len(table) * phase.noises_per_step
    return (finish or denoise)(state[0], sigmas[-1].to(mean))
