"""Checks by simulation, for the channel y = x + e with Gaussian noise, whose posterior is known."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from diffem import InputError, Observations, metrics, operators, priors
from diffem.priors.fit_channel import fit_channel_gaussian, linearise, linearised

N, SIZE, NOISE = 600, 6, 0.5
COV = torch.diag(torch.linspace(0.2, 2.0, SIZE)) + 0.3


def channel() -> operators.Channel:
    def simulate(x: Tensor, rng: Any) -> Tensor:
        return x + NOISE * rng.normal(SIZE)

    return operators.Channel(simulate, lambda y: y)


def problem() -> tuple[priors.GaussianPrior, Observations, Observations]:
    """The true prior, and the same observations of a channel and of the identity."""
    prior = priors.GaussianPrior(torch.linspace(-1, 1, SIZE), COV)
    generator = torch.Generator().manual_seed(0)
    y = prior.sample(N, seed=5) + NOISE * torch.randn(N, SIZE, generator=generator)
    return prior, Observations(y, channel()), Observations(y, sigma=NOISE)


def test_the_linearised_channel_is_the_identity_with_its_noise() -> None:
    """Gain 1, offset 0 and the variance of the noise, up to the error of 4,096 pairs: 5 σ of each is below 0.1."""
    prior, obs, _ = problem()
    law = linearise(obs, prior)
    torch.testing.assert_close(law.gain, torch.ones(SIZE).double(), atol=0.1, rtol=0)
    torch.testing.assert_close(law.variance, torch.full((SIZE,), NOISE**2).double(), atol=0.05, rtol=0)
    torch.testing.assert_close(linearised(obs, prior).y, obs.y, atol=0.3, rtol=0.1)


def test_the_gaussian_start_is_that_of_linear_observations() -> None:
    """The closed form for the identity is the maximum likelihood; the start differs by errors of the regression."""
    _, obs, linear = problem()
    found, expected = fit_channel_gaussian(obs), priors.fit_gaussian(linear)
    torch.testing.assert_close(found.mean, expected.mean, atol=0.05, rtol=0)
    difference = found.covariance().matrix()[0] - expected.covariance().matrix()[0]  # type: ignore[attr-defined]
    assert float(difference.abs().max()) < 0.25  # of variances up to 2.3


def test_a_start_of_low_rank_explains_the_main_directions() -> None:
    """x has rank 1 and a little more; entries that are constant tell nothing and stay at their mean."""
    direction = torch.tensor([2.0, -1.0, 1.0, 0.5, 1.5, 0.0])
    z = torch.randn(N, 1, generator=torch.Generator().manual_seed(3))
    y = z * direction + NOISE * torch.randn(N, SIZE, generator=torch.Generator().manual_seed(4))
    cov = fit_channel_gaussian(Observations(y, channel()), rank=1).covariance()
    unit = direction / direction.norm()
    variance = float(unit @ cov.matvec(unit.unsqueeze(0))[0])
    assert variance == pytest.approx(float(direction.square().sum()), rel=0.2)  # standard error √(2/600) = 6 %


def test_draws_from_the_true_posterior_fit() -> None:
    prior, obs, linear = problem()
    fit = metrics.simulated_fit(prior.posterior(linear).sample(4), obs)
    assert fit.ratio == pytest.approx(1, abs=0.08)  # standard error 0.02
    assert abs(fit.z) < 4


def test_draws_that_miss_or_follow_the_noise_do_not_fit() -> None:
    prior, obs, _ = problem()
    beside = metrics.simulated_fit(prior.sample(N).unsqueeze(0), obs)
    assert beside.ratio > 2
    assert beside.z > 10
    # y − y' is one noise, y'' − y' is the difference of two
    copied = metrics.simulated_fit(obs.y.unsqueeze(0), obs)
    assert copied.ratio == pytest.approx(0.5, abs=0.05)
    assert copied.z < -10


def test_simulated_measurements_are_as_far_as_two_halves() -> None:
    prior, obs, linear = problem()
    simulated, chance = metrics.simulated_distance(prior.posterior(linear).sample(1), obs)
    assert simulated == pytest.approx(chance, rel=0.3)
    simulated, chance = metrics.simulated_distance(1.5 * prior.posterior(linear).sample(1), obs)
    assert simulated > 2 * chance


def test_the_true_prior_has_the_best_score() -> None:
    """The score is proper; 256 samples and 600 observations separate these priors by more than their error."""
    prior, obs, _ = problem()
    best = metrics.simulation_score(prior.sample(256), obs)
    for other in (1.6 * prior.sample(256), 0.4 * prior.sample(256), prior.sample(256) + 0.7):
        assert metrics.simulation_score(other, obs) < best - 0.005


def test_a_deterministic_channel_has_no_fit() -> None:
    y = torch.randn(8, SIZE, generator=torch.Generator().manual_seed(0)).round()
    obs = Observations(y, operators.Channel(lambda x: x.round(), lambda y: y, random=False))
    with pytest.raises(InputError, match="random channel"):
        metrics.simulated_fit(y.unsqueeze(0), obs)


def test_linear_observations_have_their_own_measures() -> None:
    _, _, linear = problem()
    with pytest.raises(InputError, match="chi2"):
        metrics.simulated_fit(linear.y.unsqueeze(0), linear)
