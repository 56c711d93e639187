"""Lazy observations that are changed when they are read equal observations that were changed in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from diffem import Observations, operators
from diffem.observations.lazy import ChangedSource, LazyObservations, MemorySource, as_lazy
from diffem.observations.levels import has_unknowns, with_levels
from diffem.observations.precision import in_float32
from diffem.operators import Operator

CHANGES: dict[str, Callable[[Observations], Observations]] = {
    "scaled": lambda obs: obs.scaled(4.0),
    "float32": in_float32,
    "levels": lambda obs: with_levels(obs, torch.tensor([0.25], dtype=torch.float64)),
}


def observations(change: str) -> Observations:
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(12, 5, generator=generator) < 0.6
    y = torch.randn(12, 5, generator=generator, dtype=torch.float64)
    return Observations(y, operators.Mask(mask), sigma="learn" if change == "levels" else 0.5)


def same(first: Observations, second: Observations) -> bool:
    a, b = first.read().tensors(), second.read().tensors()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a)


@pytest.mark.parametrize("change", CHANGES)
def test_changed_observations_are_those_changed_in_memory(change):
    obs, rows = observations(change), torch.tensor([7, 2, 3])
    whole, lazy = CHANGES[change](obs), CHANGES[change](as_lazy(obs))
    assert isinstance(lazy, LazyObservations)
    assert same(lazy, whole)
    assert same(lazy[rows], whole[rows])
    assert torch.equal(lazy[rows].counts(), whole[rows].counts())
    x = torch.ones(3, 5, dtype=whole.y.dtype)
    part = lazy.operators()[rows]
    assert isinstance(part, Operator)
    assert torch.equal(part(x), whole.A[rows](x))


def test_the_operators_of_changed_observations_are_read_without_y():
    class Source(MemorySource):
        def read(self, rows: Tensor) -> Observations:
            raise AssertionError("y was read")

    obs = observations("scaled")
    changed = LazyObservations(Source(obs)).scaled(2.0)
    assert isinstance(changed, LazyObservations)
    part = changed.operators()[torch.arange(12)]
    assert torch.equal(part(obs.y), obs.A(obs.y))


def test_the_hash_of_observations_depends_on_their_changes():
    class Source(MemorySource):
        digest = "ab"  # type: ignore[assignment]

    source = Source(observations("scaled"))
    changed = [ChangedSource(source, lambda obs: obs, lambda A: A, name).digest for name in ("× 2.0", "× 4.0", "× 2.0")]
    assert changed[0] == changed[2] != changed[1]


def test_unknown_noise_is_unknown_until_the_levels_are_set():
    obs = observations("levels")
    assert has_unknowns(obs)
    assert has_unknowns(as_lazy(obs))
    assert not has_unknowns(CHANGES["levels"](obs))
    assert not has_unknowns(observations("scaled"))
