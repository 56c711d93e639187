"""Count the network evaluations of a step and measure its peak memory."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Step = Callable[[], Tensor]


@dataclass
class Counts:
    forwards: int = 0
    vjps: int = 0


class _CountBackward(torch.autograd.Function):
    """The identity, which counts its backward passes."""

    @staticmethod
    def forward(x: Tensor, counts: Counts) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.counts = inputs[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.counts.vjps += 1
        return gradient, None


class CountingNetwork(nn.Module):
    """h(x, log σ), which counts its forward passes and vector–Jacobian products while `counting`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.counts, self.counting = Counts(), False

    def forward(self, x: Tensor, log_sigma: Tensor) -> Tensor:
        if self.counting:
            self.counts.forwards += 1
            x = _CountBackward.apply(x, self.counts)
        return self.network(x, log_sigma)

    @contextmanager
    def count(self) -> Iterator[Counts]:
        self.counts, self.counting = Counts(), True
        try:
            yield self.counts
        finally:
            self.counting = False


class StorageTracker(TorchDispatchMode):
    """Current and peak size in bytes of the CPU tensors that were created inside the context."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self.known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for part in out if isinstance(out, tuple | list) else (out,):
            if isinstance(part, Tensor):
                self._see(part.untyped_storage())
        return out

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key in self.known:
            return
        size = storage.nbytes()
        self.known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self.known.discard(key)
        self.now -= size


def peak_mib(step: Step, device: torch.device) -> float:
    """Peak memory of a step beyond the memory in use before it."""
    if device.type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    with StorageTracker() as tracker:
        step()
    return tracker.peak / 2**20
