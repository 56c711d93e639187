r"""Parameters θ of an operator that are not known: their values, and the derivatives of A_θ x.

They belong to the `Function` parts of an operator, and are a few numbers for all observations or for each group of
observations. Parts that learn a parameter of the same name share its value.

The derivatives J_k = ∂(A_θ x)/∂θ_k come from two vector–Jacobian products: v ↦ ∂⟨A_θ x, v⟩/∂θ is linear in v, and its
derivative by v is J. Forward-mode differentiation is not implemented for all torch functions (`grid_sample`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import default_modes
from .base import Operator
from .function import Function


@dataclass(frozen=True)
class LearnedParameter:
    """A parameter to learn.

    Attributes:
        value: `(*shape)`, or `(G, *shape)` for one value per group.
        labels: `(n,)`. The group of each observation; None for one value shared by all.
    """

    value: Tensor
    labels: Tensor | None

    @property
    def entries(self) -> int:
        """The number of values that concern one observation."""
        return self.value.numel() // (1 if self.labels is None else len(self.value))


def _functions(A: Operator) -> Iterator[Function]:
    if isinstance(A, Function):
        yield A
    for child in A.children():
        yield from _functions(child)


def is_learned(A: Operator) -> bool:
    """Whether the operator has parameters to learn."""
    return any(part.learns for part in _functions(A))


def learned_parameters(A: Operator) -> dict[str, LearnedParameter]:
    """The parameters to learn, by name.

    Raises:
        InputError: If parts of the operator share a name with different initial values or groups.
    """
    found: dict[str, LearnedParameter] = {}
    for part in _functions(A):
        for name in part.learns:
            own = LearnedParameter(part.tensors()[name], part.labels(name))
            if (other := found.setdefault(name, own)) is own:
                continue
            same = torch.equal(own.value, other.value) and (own.labels is None) == (other.labels is None)
            if not same or (own.labels is not None and not torch.equal(own.labels, other.labels)):  # type: ignore[arg-type]
                raise InputError(
                    f"two parts of the operator learn {name} with different initial values or groups: parts that learn "
                    "a parameter of the same name share its value; rename one of them"
                )
    return found


def with_values(A: Operator, values: Mapping[str, Tensor], still_learned: bool = False) -> Operator:
    """The operator with these values of all parameters to learn.

    Args:
        A: The operator.
        values: `(*shape)` or `(G, *shape)` per name; gradients are kept.
        still_learned: Whether the parameters remain marked as parameters to learn.

    Raises:
        InputError: If values are missing, or do not fit.
    """
    if isinstance(A, Function):
        if missing := [name for name in A.learns if name not in values]:
            raise InputError(f"the operator learns {', '.join(missing)}, for which there is no value")
        own = {name: values[name] for name in A.learns}
        return A.with_values(own, A.learns if still_learned else ()) if own else A
    parts = A.children()
    if not any(map(is_learned, parts)):
        return A
    return type(A)(*(with_values(part, values, still_learned) for part in parts), **A.config())


def derivatives(A: Operator, x: Tensor) -> tuple[Tensor, Tensor]:
    """Differentiate A_θ x by the learned parameters at their initial values.

    Args:
        A: The operator.
        x: `(n, *event)`.

    Returns:
        A_θ x, `(n, *measurement)`, and its derivatives by the values that concern each observation,
        `(q, n, *measurement)`, in the order of `learned_parameters`.

    Raises:
        InputError: If A_θ x does not depend on a parameter through differentiable operations.
    """
    with default_modes(), torch.enable_grad():
        learned = learned_parameters(A)
        values = {name: p.value.detach().clone().requires_grad_(True) for name, p in learned.items()}
        y = with_values(A, values)(x)
        if not y.requires_grad:
            raise InputError(_undifferentiable(", ".join(values)))
        v = torch.zeros_like(y, requires_grad=True)
        pulled = torch.autograd.grad(y, tuple(values.values()), v, create_graph=True, allow_unused=True)
        rows = []
        for (name, parameter), g in zip(learned.items(), pulled, strict=True):
            if g is None or not g.requires_grad:
                raise InputError(_undifferentiable(name))
            # an observation has the value of its own group only, so one derivative serves all groups
            entries = g.reshape(1 if parameter.labels is None else len(g), -1).sum(0)
            for k in range(parameter.entries):
                (row,) = torch.autograd.grad(entries[k], v, retain_graph=True)
                rows.append(row)
    return y.detach(), torch.stack(rows).detach()


def positions(A: Operator, n: int) -> Tensor:
    """Where the values that concern each observation are in the vector of all values, `(n, q)`."""
    columns, before = [], 0
    for parameter in learned_parameters(A).values():
        q = parameter.entries
        own = torch.arange(q, device=parameter.value.device).expand(n, q) + before
        columns.append(own if parameter.labels is None else own + q * parameter.labels[:, None])
        before += parameter.value.numel()
    return torch.cat(columns, 1)


def _undifferentiable(names: str) -> str:
    return (
        f"the result of the Function does not depend on {names} through differentiable operations: compute with the "
        "tensor itself, without .item(), float(), int() or numpy"
    )
