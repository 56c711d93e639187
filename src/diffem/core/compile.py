"""Element-wise work in few kernels: compiled where it runs on a GPU, plain everywhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
T = TypeVar("T")

COMPILING_SECONDS = 60  # of a U-Net with its products, about
GAIN_SECONDS = 0.03  # of an evaluation with its products on a batch that fills the card; benchmarks/cost


def fused(function: Callable[P, T]) -> Callable[P, T]:
    """Compile `function` at its first call with GPU tensors; the arithmetic is the same, the launches are fewer.

    For functions of tensors without side effects. One compilation serves batches of any size.
    """
    compiled: list[Callable[P, T]] = []

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if not _on_gpu(args):
            return function(*args, **kwargs)
        if not compiled:
            compiled.append(torch.compile(function, dynamic=True))
        return compiled[0](*args, **kwargs)

    return call


def _on_gpu(args: tuple[Any, ...]) -> bool:
    return any(isinstance(a, Tensor) and a.is_cuda for a in args)


@contextmanager
def fast_products(enabled: bool = True) -> Iterator[None]:
    """float32 matrix products on tensor cores (TF32) inside: for networks only, measurements and covariances need every digit."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compiling_pays(evaluations: int) -> bool:
    """Whether so many evaluations are done sooner when the network is compiled first."""
    return evaluations * GAIN_SECONDS > COMPILING_SECONDS


def compile_network(network: torch.nn.Module) -> None:
    """Compile a network in place, once, so that repeated vector–Jacobian products through one forward pass stay possible."""
    import torch._functorch.config as functorch

    if network._compiled_call_impl is not None:
        return
    functorch.donated_buffer = False  # the backward pass is run more than once
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # what convolutions on a GPU work fastest with
    network.compile(dynamic=False)
