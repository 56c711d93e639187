"""CUDA graphs: a step is captured once and replayed, without Python or launch gaps between its kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from .interruption import poll
from .progress import Progress

State: TypeAlias = tuple[Tensor, ...]  # tensors that a step updates: x first, then the memory of the sampler
# Capturing runs extra steps. A snapshot saves the statistics before them and returns a function that restores the
# statistics afterwards.
Snapshot: TypeAlias = Callable[[], Callable[[], None]]


def no_snapshot() -> Callable[[], None]:
    """Save nothing: for steps that count nothing."""
    return lambda: None


def capture(function: Callable[[], None], warmup: int = 2) -> torch.cuda.CUDAGraph:
    """Run `function` a few times, as capturing requires, then capture it.

    It must work in place on tensors it closes over.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(warmup):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function()
    return graph


def capturing(tensor: Tensor) -> bool:
    """Whether the computation of a tensor is being captured, so that nothing may depend on its value."""
    return tensor.is_cuda and torch.cuda.is_current_stream_capturing()


def replay(
    step: Callable[[State, Tensor, Tensor], State],
    state: State,
    table: Tensor,
    progress: Progress | None,
    snapshot: Snapshot,
) -> State:
    """Run all steps of a table `(steps, c)` by capturing one `step(state, i, row)` and replaying it."""
    static = tuple(part.clone() for part in state)
    i = torch.zeros(1, dtype=torch.int64, device=table.device)

    def one_step() -> None:
        row = table.index_select(0, i)[0]
        for old, new in zip(static, step(static, i, row), strict=True):
            old.copy_(new)
        i.add_(1)

    restore = snapshot()
    graph = capture(one_step)
    for old, new in zip(static, state, strict=True):
        old.copy_(new)
    i.zero_()
    restore()
    n = len(static[0])
    for k in range(len(table)):
        graph.replay()
        poll()
        if progress is not None and progress.show and k % 64 == 0:
            torch.cuda.synchronize()  # launches run far ahead of the GPU; only a progress bar must wait for it
            progress.advance(64 * n)
    return static
