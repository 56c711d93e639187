"""Compilation of networks and of element-wise functions. Functions are compiled on a GPU only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from . import vector_math  # noqa: F401  # initialises it

P = ParamSpec("P")
T = TypeVar("T")

COMPILING_SECONDS = 60  # compiling a U-Net and its vector–Jacobian products takes about this long
GAIN_SECONDS = 0.03  # saved per evaluation with its VJPs on a batch that fills the GPU; see benchmarks/cost


def fused(function: Callable[P, T]) -> Callable[P, T]:
    """Compile `function` at its first call with GPU tensors; the arithmetic is the same, with fewer kernel launches.

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
    """Allow TF32 matrix products inside this context.

    For networks only: operators and covariances need full float32.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def compiling_pays(evaluations: int) -> bool:
    """Whether compiling the network first makes this many evaluations faster in total."""
    return evaluations * GAIN_SECONDS > COMPILING_SECONDS


def compile_network(network: torch.nn.Module) -> None:
    """Compile a network in place, once. Repeated VJPs through one forward pass remain possible."""
    import torch._functorch.config as functorch

    if network._compiled_call_impl is not None:
        return
    functorch.donated_buffer = False  # the backward pass is run more than once
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # the fastest layout for convolutions on a GPU
    network.compile(dynamic=False)


def run_eagerly(network: torch.nn.Module) -> None:
    """Undo `compile_network`: for a few evaluations with a new batch size, which would compile the network again."""
    network._compiled_call_impl = None
