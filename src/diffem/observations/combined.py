"""Observations of different kinds in one set: clean samples, masks, blurs, each with its own noise.

Operators of one kind are joined into one, with parameters for every observation; complete samples count as masks that
measure everything. Different kinds are stacked: y has a slot for each kind, and an observation measures the slot of its
own kind only, so that everything that works with masks of other operators works here.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..linalg import Diagonal, Isotropic
from ..operators import Compose, Identity, Mask, Operator, Stack
from ..operators.saved import operator_structure
from ..operators.user_check import has_function
from .features import require_linear_gaussian
from .observations import Observations


def concatenate(sets: Sequence[Observations], weights: Sequence[int] | None = None) -> Observations:
    """Join sets of observations of the same kind of x.

    Args:
        sets: The sets, in the order in which their observations follow each other. Noise must be independent between
            values.
        weights: How often the draws of each set are used in an epoch of training, a whole number per set. Default:
            once. Weights that a set has already are multiplied by it.

    Raises:
        InputError: If the samples differ in shape or precision, the noise is correlated or unknown, or an operator
            contains a function.
    """
    sets = [sets] if isinstance(sets, Observations) else list(sets)
    _require_alike(sets)
    sets = [obs.read() for obs in sets]
    kinds = _kinds([_as_mask(obs) for obs in sets])
    joined = [_joined([part for _, part in members]) for members in kinds]
    order = torch.cat([torch.cat([_rows(sets, k) for k, _ in members]) for members in kinds])
    together = joined[0] if len(joined) == 1 else _stacked(joined)
    combined = together[order.argsort()]
    combined.adaptive = any(obs.adaptive for obs in sets)
    combined.repeats = _repeats(sets, weights)
    return combined


def _require_alike(sets: list[Observations]) -> None:
    if not sets or not all(isinstance(obs, Observations) for obs in sets):
        raise InputError(f"concatenate takes a list of Observations, got {[type(obs).__name__ for obs in sets]}")
    for obs in sets[1:]:
        if obs.x_shape != sets[0].x_shape:
            raise InputError(f"all sets must be of samples of one shape, got {sets[0].x_shape} and {obs.x_shape}")
        if obs.y.dtype != sets[0].y.dtype or obs.y.device != sets[0].y.device:
            raise InputError(
                f"all sets must have one precision and device, got {sets[0].y.dtype} on {sets[0].y.device} and "
                f"{obs.y.dtype} on {obs.y.device}: convert with .to(...)"
            )
    for obs in sets:
        require_linear_gaussian(
            obs, "concatenate", "Start from a prior of the other sets instead: fit(..., start=prior)"
        )
        if not isinstance(obs.cov, Isotropic | Diagonal):
            raise InputError(
                f"concatenate takes independent noise of known level, got {type(obs.cov).__name__}: "
                "give sigma as numbers"
            )
        if has_function(obs.A) and len(sets) > 1:
            raise InputError(
                "operators that contain a Function cannot be concatenated: use the library's operators, or one set"
            )


def _as_mask(obs: Observations) -> Observations:
    """Complete samples as masks that measure everything; per-value noise in all cases, and no weights."""
    A = obs.A
    if isinstance(A, Identity):
        A = Mask(torch.ones(len(obs), *obs.x_shape, dtype=torch.bool, device=obs.y.device)).resolve_axes(obs.y[:1])
    elif isinstance(A, Mask):
        A = Mask(A.measured(obs.y).expand_as(obs.y).clone()).resolve_axes(obs.y[:1])
    new = copy.copy(obs)
    variances = obs.cov.diagonal(tuple(obs.y.shape[1:])).expand_as(obs.y).contiguous()
    new.A, new.cov, new.repeats = A, Diagonal(variances).bind(obs.y.ndim - 1), None
    return new


def _kinds(sets: list[Observations]) -> list[list[tuple[int, Observations]]]:
    """The sets by kind of operator and shape of its parameters, with their place among all sets."""
    kinds: dict[str, list[tuple[int, Observations]]] = {}
    for k, obs in enumerate(sets):
        kinds.setdefault(f"{operator_structure(obs.A)} {_shapes(obs.A)} {tuple(obs.y.shape[1:])}", []).append((k, obs))
    return list(kinds.values())


def _shapes(A: Operator) -> list[object]:
    own = [(name, tuple(A._read(name).shape[1:]), A._tensors[name].dtype) for name in A._tensors]
    return [*own, *(_shapes(child) for child in A.children())]


def _joined(sets: list[Observations]) -> Observations:
    """Sets with operators of one kind as one."""
    new = copy.copy(sets[0])
    new.y = torch.cat([obs.y for obs in sets])
    new.A = _joined_operators([obs.A for obs in sets], [len(obs) for obs in sets])
    variances = torch.cat([obs.cov.diagonal(tuple(obs.y.shape[1:])) for obs in sets])
    new.cov = Diagonal(variances).bind(new.y.ndim - 1)
    return new


def _joined_operators(operators: list[Operator], counts: list[int]) -> Operator:
    if operators[0].children():
        children = zip(*(A.children() for A in operators), strict=True)
        return type(operators[0])(*(_joined_operators(list(p), counts) for p in children), **operators[0].config())
    new = copy.copy(operators[0])
    new._tensors = {}
    for name in operators[0]._tensors:
        rows = [A._read(name) for A in operators]
        new._tensors[name] = torch.cat([r.expand(n, *r.shape[1:]) for r, n in zip(rows, counts, strict=True)])
    return new


def _stacked(kinds: list[Observations]) -> Observations:
    """Several kinds as one: a slot of y for each."""
    counts = [len(obs) for obs in kinds]
    total, first = sum(counts), kinds[0]
    shapes = [tuple(obs.y.shape[1:]) for obs in kinds]
    own = torch.repeat_interleave(torch.arange(len(kinds)), torch.tensor(counts))
    operators, slots, noises, selected = [], [], [], []
    before = 0
    for k, obs in enumerate(kinds):
        here = torch.arange(before, before + counts[k])
        before += counts[k]
        rows = torch.zeros(total, dtype=torch.int64)  # observations of other kinds take the first operator, unmeasured
        rows[here] = torch.arange(counts[k])
        operators.append(obs.A[rows])
        y, variance = obs.y.new_zeros(total, *shapes[k]), obs.y.new_ones(total, *shapes[k])
        y[here], variance[here] = obs.y, obs.cov.diagonal(shapes[k]).to(obs.y)
        slots.append(y)
        noises.append(variance)
        selected.append((own == k).reshape(-1, *(1,) * len(shapes[k])).expand(total, *shapes[k]).to(y.device))

    def slotted(parts: list[Tensor]) -> Tensor:
        return torch.stack(parts, 1) if len(set(shapes)) == 1 else torch.cat([p.flatten(1) for p in parts], 1)

    stack = Stack(*operators, x_shape=None if len(set(shapes)) == 1 else first.x_shape)
    A = Compose(Mask(slotted(selected)), stack)
    return Observations(slotted(slots), A, cov=Diagonal(slotted(noises)))


def _rows(sets: list[Observations], k: int) -> Tensor:
    """The places of the observations of set k among all."""
    before = sum(len(obs) for obs in sets[:k])
    return torch.arange(before, before + len(sets[k]))


def _repeats(sets: list[Observations], weights: Sequence[int] | None) -> Tensor | None:
    if weights is None:
        if all(obs.repeats is None for obs in sets):
            return None
        weights = [1] * len(sets)
    good = len(weights) == len(sets) and all(isinstance(w, int) and not isinstance(w, bool) and w > 0 for w in weights)
    if not good:
        needed = count_of(len(sets), "positive whole number")
        raise InputError(f"weights must be {needed}, one per set, got {list(weights)}")
    own = [torch.ones(len(obs), dtype=torch.int64) if obs.repeats is None else obs.repeats.cpu() for obs in sets]
    return torch.cat([w * repeats for w, repeats in zip(weights, own, strict=True)])
