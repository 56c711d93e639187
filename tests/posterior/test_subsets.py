"""Draws for one observation do not depend on the others in the set, with noise from 1e-6 to 1 in one set."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.expectation import draw_shard
from diffem.posterior import Statistics
from diffem.runs.recipe import EStep

from ..exact import random_covariance
from .registry import CONFIGURATIONS
from .test_battery import EVENT, SIZE, network_prior, observations

DOUBLE = torch.float64
N, STEPS = 16, 8
SOME = torch.tensor([11, 2, 5])


def mixed(obs: Observations) -> Observations:
    """The observations with noise from 1e-6 to 1, in no order."""
    sigma = torch.logspace(-6, 0, len(obs), dtype=obs.y.dtype)[
        torch.randperm(len(obs), generator=torch.Generator().manual_seed(1))
    ]
    return Observations(obs.y, obs.A, sigma=sigma)


def assert_equal_up_to_rounding(x: torch.Tensor, y: torch.Tensor) -> None:
    """A product of matrices rounds by the number of its rows; ill-conditioned systems amplify 1e-16 to 1e-10 here."""
    size = y.flatten(2).norm(dim=2).clamp(min=1)
    assert float(((x - y).flatten(2).norm(dim=2) / size).max()) < 1e-8


def assert_alone_as_together(prior: priors.Prior, obs: Observations, given: dict[str, Any], **options: Any) -> None:
    """Draws of some observations, in another order and in other batches, and their statistics, are those of all.

    Args:
        given: Arguments of `posterior`.
        options: Arguments of `sample`.
    """
    together, alone = prior.posterior(obs, **given), prior.posterior(obs[SOME], **given)
    stops_early = getattr(together, "tolerance", None) is not None  # after a number of iterations that rounding changes
    x, statistics = together.sample(2, STEPS, seed=3, return_stats=True, **options)
    for posterior, batch_size in ((alone, None), (alone, 1), (alone, 5), (together[SOME], None)):
        some, counted = posterior.sample(
            2, STEPS, seed=3, index=SOME, batch_size=batch_size, return_stats=True, **options
        )
        assert_equal_up_to_rounding(some, x[:, SOME])
        for name in ("evaluations", "forwards") if stops_early else (f.name for f in fields(Statistics)):
            whole = getattr(statistics, name)[:, SOME]
            torch.testing.assert_close(getattr(counted, name), whole, rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_a_subset_gets_the_same_draws_from_every_method(name):
    method, options = CONFIGURATIONS[name]
    assert_alone_as_together(network_prior(), mixed(observations(N)), {"method": method, **options})


@pytest.mark.parametrize("sampler", ["ddim", "ddpm", "ddim2", "ddpm2", "heun", "pc"])
def test_a_subset_gets_the_same_draws_from_every_sampler(sampler):
    direct = {"method": "mmps", "solver": "direct"}
    assert_alone_as_together(network_prior(), mixed(observations(N)), direct, sampler=sampler)


def mixture() -> priors.MixturePrior:
    means = torch.randn(3, SIZE, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    return priors.MixturePrior(torch.tensor([0.2, 0.3, 0.5], dtype=DOUBLE), means, torch.full((3,), 0.4, dtype=DOUBLE))


def flat(n: int) -> Observations:
    """Three measured combinations of eight values."""
    generator = torch.Generator().manual_seed(2)
    A = operators.Dense(torch.randn(n, 3, SIZE, generator=generator, dtype=DOUBLE))
    return Observations(torch.randn(n, 3, generator=generator, dtype=DOUBLE), A, sigma=1.0)


@pytest.mark.parametrize("picks", [1, 2])
def test_a_subset_gets_the_same_draws_with_particles(picks):
    direct = {"method": "mmps", "solver": "direct"}
    assert_alone_as_together(mixture(), mixed(flat(N)), direct, sampler="tds", particles=4, picks=picks)


def test_the_exact_posterior_of_a_mixture():
    assert_alone_as_together(mixture(), mixed(flat(N)), {"method": "exact"})


def test_the_exact_posterior_of_a_gaussian_by_a_sampler():
    prior = priors.GaussianPrior(torch.zeros(SIZE, dtype=DOUBLE), random_covariance(SIZE))
    assert_alone_as_together(prior, mixed(flat(N)), {}, sampler="ddpm2")


def test_one_denoising_of_complete_observations():
    obs = Observations(torch.randn(N, *EVENT, generator=torch.Generator().manual_seed(0), dtype=DOUBLE), sigma=1.0)
    assert_alone_as_together(network_prior(), mixed(obs), {"method": "exact"})


@pytest.mark.parametrize("batch_size", [None, 5])
def test_a_subset_gets_the_same_draws_in_the_e_step(batch_size):
    """The draws of a shard do not depend on which observations it contains."""
    prior, obs, index = network_prior(), mixed(observations(N)), 100 + torch.arange(N)
    options = EStep(method="mmps", steps=STEPS, draws=2, plausible=None, chi2=1e9)
    address = {"seed": 0, "lap": 1, "bound": 1e9, "batch_size": batch_size}
    whole = draw_shard(prior, obs, options, index=index, **address).x
    parts = [draw_shard(prior, obs[rows], options, index=index[rows], **address).x for rows in torch.arange(N).split(7)]
    assert_equal_up_to_rounding(torch.cat(parts, 1), whole)


def test_the_first_draws_of_a_set_are_those_of_its_first_observations_bit_for_bit():
    """A mixture and masks need no matrix products, whose rounding depends on the batch."""
    prior = priors.MixturePrior(torch.tensor([0.4, 0.6]), torch.tensor([[0.0], [1.0]]), torch.tensor([0.3, 0.5]))
    obs = mixed(Observations(torch.linspace(-1, 2, N).reshape(N, 1), sigma=1.0))
    for method in ("mmps", "exact"):
        x = prior.posterior(obs, method).sample(steps=STEPS)
        assert torch.equal(prior.posterior(obs[:2], method).sample(steps=STEPS), x[:2])
