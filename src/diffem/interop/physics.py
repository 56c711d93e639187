"""Copy a deepinv physics with other tensors, without changing the original.

A copy is a deep copy in which some tensors are replaced. Its computations are not changed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn


def modules_of(physics: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The modules on which A depends, by path: not noise models and mask generators, but the parts of stacks."""
    yield prefix, physics
    listed = vars(physics).get("physics_list")
    if isinstance(listed, list | tuple):
        for i, child in enumerate(listed):
            yield from modules_of(child, f"{prefix}physics_list.{i}.")
    for name, module in physics._modules.items():
        if module is not None and name not in ("noise_model", "gen"):
            yield from modules_of(module, f"{prefix}{name}.")


def tensors_of(physics: nn.Module) -> dict[str, Tensor]:
    """The tensors on which A depends, by path."""
    return {
        f"{prefix}{name}": tensor
        for prefix, module in modules_of(physics)
        for name, tensor in (*module._buffers.items(), *module._parameters.items())
        if tensor is not None and name != "_device_holder"
    }


def copied(physics: nn.Module, replaced: Mapping[int, Tensor]) -> Any:
    """Make a deep copy in which the tensor with id k is `replaced[k]`.

    Random generators cannot be copied, so they are shared.
    """
    memo: dict[int, Any] = dict(replaced)
    pending: list[Any] = [physics]
    while pending:
        owner = pending.pop()
        for value in vars(owner).values():
            if isinstance(value, torch.Generator):
                memo[id(value)] = value
            elif isinstance(value, list | tuple):
                pending += [part for part in value if isinstance(part, nn.Module)]
        pending += [part for part in owner._modules.values() if part is not None]
    new = copy.deepcopy(physics, memo)
    for _, module in modules_of(new):
        dtype = vars(module).get("dtype")
        tensors = [t for t in module._buffers.values() if t is not None and (t.is_floating_point() or t.is_complex())]
        own = [t for t in tensors if id(t) in {id(r) for r in replaced.values()}]
        if isinstance(dtype, torch.dtype) and own:
            module.dtype = own[0].dtype  # type: ignore[assignment]  # some modules store their dtype
    return new
