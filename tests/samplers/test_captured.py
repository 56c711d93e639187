"""A captured step gives the same draws and counts as the step itself. Without a GPU, capturing is simulated.

The simulation executes the steps of the capture and then restores the state.
"""

from types import SimpleNamespace

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.core import cuda_graphs as capture
from diffem.samplers import SAMPLERS

from ..exact import random_covariance

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OPTIONS = {"pc": {"down_to": 1.0, "corrections": 2}, "tds": {"particles": 4}}


def acted_out(function, warmup=2):
    for _ in range(warmup):
        function()
    return SimpleNamespace(replay=function)


@pytest.fixture(autouse=True)
def _capturing(monkeypatch):
    if DEVICE == "cpu":
        monkeypatch.setattr(capture, "capture", acted_out)


@pytest.mark.parametrize("name", SAMPLERS)
def test_captured_steps_draw_and_count_the_same(name):
    prior = priors.GaussianPrior(torch.linspace(-1, 1, 4), random_covariance(4, seed=3).float()).to(DEVICE)
    matrix = torch.randn(2, 4, generator=torch.Generator().manual_seed(1))
    obs = Observations(
        torch.randn(6, 2, generator=torch.Generator().manual_seed(2)), operators.Dense(matrix), sigma=0.4
    )
    posterior = prior.posterior(obs.to(DEVICE))
    settings = {"steps": 9, "sampler": name, "return_stats": True, "progress": False, **OPTIONS.get(name, {})}
    x, statistics = posterior.sample(**settings)
    y, counted = posterior.sample(**settings, captured=True)
    torch.testing.assert_close(
        x, y, rtol=0, atol=0 if DEVICE == "cpu" else 1e-5
    )  # a GPU may choose other kernels in a graph
    for field in ("evaluations", "forwards", "vjps", "iterations", "guards", "resamplings"):
        assert torch.equal(getattr(statistics, field), getattr(counted, field)), field
    assert int(counted.evaluations[0]) > 9


@pytest.mark.parametrize(
    ("settings", "sampler", "expected"),
    [
        ({"iterations": 8}, "ddpm2", True),
        (
            {"solver": "direct"},
            "pc",
            False,
        ),  # three measured values: an eigenvalue problem whose success is checked on the host
        ({"iterations": 2}, "tds", True),
        ({"iterations": 3}, "tds", False),
        ({"solver": "gmres"}, "ddpm", False),
        ({"tolerance": 1e-3}, "ddpm", False),
    ],
)
def test_steps_that_read_back_are_not_captured(settings, sampler, expected, monkeypatch):
    captured = []
    monkeypatch.setattr(capture, "capture", lambda function: captured.append(1) or acted_out(function))
    prior = priors.GaussianPrior(torch.zeros(4), torch.eye(4)).to(DEVICE)
    obs = Observations(torch.randn(6, 3), operators.Dense(torch.randn(3, 4)), sigma=0.4).to(DEVICE)
    prior.posterior(obs, method="mmps", **settings).sample(steps=3, sampler=sampler, captured=True, progress=False)
    assert bool(captured) is expected
