"""Operators in files: kinds and settings as JSON values, tensors by name.

Rebuilding runs all checks of the constructors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..files import memory
from . import OPERATORS
from .base import Operator

# limits on the size of samples that a file may imply: absolute, and relative to the size of the file
SAMPLE, GROWTH = 1 << 24, 1024
PARTS, NESTING = 256, 16  # limits on the parts of an operator in a file, and on their nesting


def gather_tensors(A: Operator, prefix: str, tensors: dict[str, Tensor]) -> None:
    """Add the operator's tensors to `tensors`, under names that start with `prefix`."""
    for name, tensor in A.tensors().items():
        tensors[f"{prefix}.{name}"] = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    for i, child in enumerate(A.children()):
        gather_tensors(child, f"{prefix}.{i}", tensors)


def describe_operator(A: Operator, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Describe an operator as JSON values; its tensors are added to `tensors` under names that start with `prefix`."""
    kind = type(A).__name__
    if OPERATORS.get(kind) is not type(A):
        raise InputError(
            f"an operator of type {kind} contains code and cannot be saved; build it again in the program that uses it"
        )
    gather_tensors(A, prefix, tensors)
    complex_names = [name for name, tensor in A.tensors().items() if tensor.is_complex()]
    children = [describe_operator(child, f"{prefix}.{i}", tensors) for i, child in enumerate(A.children())]
    return {
        "kind": kind,
        "config": A.config(),
        "tensors": list(A.tensors()),
        "complex": complex_names,
        "children": children,
    }


def rebuild_operator(structure: dict[str, Any], prefix: str, tensors: dict[str, Tensor]) -> Operator:
    """Rebuild an operator by its constructor, with all its checks."""
    if not isinstance(structure, dict) or prefix.count(".") > NESTING or len(structure["children"]) > PARTS:
        raise InputError(f"{prefix}: an operator has at most {PARTS} parts, nested at most {NESTING} deep")
    kind = structure["kind"]
    if kind not in OPERATORS:
        raise InputError(f"unknown operator {kind!r}; known: {', '.join(OPERATORS)}")
    children = [rebuild_operator(child, f"{prefix}.{i}", tensors) for i, child in enumerate(structure["children"])]
    own = {name: tensors[f"{prefix}.{name}"] for name in structure["tensors"]}
    for name in structure["complex"]:
        own[name] = torch.view_as_complex(own[name])
    return OPERATORS[kind](*children, **own, **structure["config"])


def per_observation(A: Operator, prefix: str) -> set[str]:
    """The names of the tensors that hold one entry per observation, as `gather_tensors` names them."""
    own = {f"{prefix}.{name}" for name in A.per_observation()}
    return own.union(*(per_observation(child, f"{prefix}.{i}") for i, child in enumerate(A.children())))


def operator_structure(A: Operator) -> dict[str, Any]:
    """The kinds and settings of an operator and of its parts, as JSON values."""
    parts = [operator_structure(child) for child in A.children()]
    return {"kind": type(A).__name__, "config": A.config(), "children": parts}


def require_affordable(A: Operator, y: Tensor) -> None:
    """Raise InputError if the settings of an operator imply samples that are far larger than the data."""
    _, numbers = A.implied_shape(tuple(y.shape))
    if numbers > max(SAMPLE, GROWTH * y.numel()):
        raise InputError(f"an operator over {numbers} numbers comes with y of {count_of(y.numel(), 'value')}")
    memory.require(numbers * y.element_size(), "the operator")
