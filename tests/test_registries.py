"""Each family of parts has a registry: a part that is defined and registered here works by name, also in a recipe."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

import diffem
from diffem import Observations
from diffem.linalg import SOLVERS, Isotropic, cg
from diffem.linalg.kinds import COVARIANCES
from diffem.linalg.saved import describe_covariance, rebuild_covariance
from diffem.nn.networks import NETWORKS
from diffem.observations import Problem
from diffem.operators import OPERATORS, Operator
from diffem.posterior import METHODS, SigmaT
from diffem.runs.sources import SOURCES
from diffem.samplers import SAMPLERS, Heun

from .em.small import observations
from .undrawn import _undrawn  # noqa: F401 (a fixture)

RECIPE = {
    "name": "registered",
    "data": {"source": "registered_source"},
    "laps": 2,
    "gaussian": {"rounds": 2},
    "network": {"kind": "registered_network"},
    "e_step": {"method": "registered_method", "sampler": "registered_sampler", "steps": 3, "shard": 64},
    "train": {"steps": 4, "batch": 8},
    "watch": {"held_out": 0, "draws": 2, "samples": 4},
}


class Flip(Operator):
    """y = x with its last axis reversed."""

    def _forward(self, x):
        return x.flip(-1)

    def _adjoint(self, y):
        return y.flip(-1)


class Reciprocal(Isotropic):
    """A covariance of a new kind."""


class Zero(torch.nn.Module):
    """h(x, log σ) = 0, with one weight to train."""

    def __init__(self, event_shape):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(event_shape))

    def forward(self, x, log_sigma):
        return self.weight.expand_as(x) + 0 * log_sigma.reshape(-1, *(1,) * (x.ndim - 1))


@dataclass
class Halved(SigmaT):
    """sigma_t with half of the correction, solved by a registered solver."""

    method: ClassVar[str] = "registered_method"
    solver: str = "registered_solver"

    def correction(self, prior, pullback, sigma):
        return super().correction(prior, pullback, sigma) / 2


@pytest.fixture
def used(monkeypatch):
    """Register one part of each family; the list collects the names of the parts that were called."""
    calls = []

    def noted(name, function):
        def call(*arguments, **options):
            calls.append(name)
            return function(*arguments, **options)

        return call

    for registry, name, part in (
        (SOLVERS, "registered_solver", cg),
        (SAMPLERS, "registered_sampler", Heun),
        (METHODS, "registered_method", Halved),
        (NETWORKS, "registered_network", Zero),
        (SOURCES, "registered_source", lambda seed: Problem(observations(64))),
    ):
        monkeypatch.setitem(registry, name, noted(name, part))
    monkeypatch.setitem(OPERATORS, "Flip", Flip)
    monkeypatch.setitem(COVARIANCES, "registered_covariance", Reciprocal)
    return calls


def test_a_recipe_uses_registered_parts_by_name(used, tmp_path):
    run = diffem.fit(recipe=RECIPE, out=tmp_path / "run", seed=0, report=False)
    assert len(run.laps) == 3
    assert isinstance(diffem.load(run.path).network, Zero)
    assert set(used) == {f"registered_{part}" for part in ("solver", "sampler", "method", "network", "source")}


def test_a_registered_operator_and_covariance_are_saved_and_loaded(used, tmp_path):
    obs = Observations(torch.randn(3, 4), Flip(), cov=Reciprocal(0.25))
    obs.save(tmp_path / "obs.safetensors")
    again = Observations.load(tmp_path / "obs.safetensors")
    assert (type(again.A), type(again.cov)) == (Flip, Reciprocal)
    description, tensors = describe_covariance(obs.cov)
    assert type(rebuild_covariance(description, tensors)) is Reciprocal
