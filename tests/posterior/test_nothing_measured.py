"""The posterior of observations that measure nothing is the prior: every method, solver, sampler and kind of noise."""

import math

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.core.randomness import Stream
from diffem.linalg import DenseCovariance, Diagonal, Isotropic, LowRank

from ..exact import random_covariance
from .registry import ANY_PRIOR, CONFIGURATIONS
from .test_battery import EVENT, SIZE, network_prior

N, DOUBLE = 12, torch.float64
EMPTY = torch.arange(N) % 3 == 0
NOISE = {
    "isotropic": lambda: Isotropic(0.2),
    "low rank": lambda: LowRank(torch.ones(1, *EVENT, dtype=DOUBLE), 0.2),
    "dense": lambda: DenseCovariance(random_covariance(SIZE, seed=4)),
}


def observations(noise="isotropic", n=N, empty=EMPTY):
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(n, *EVENT, generator=generator) < 0.6
    mask[:, 0, 0] = True
    mask[empty] = False
    y = torch.randn(n, *EVENT, generator=generator, dtype=DOUBLE)
    y[empty] = torch.nan  # any values in the unmeasured entries
    return Observations(y, operators.Mask(mask), cov=NOISE[noise]())


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("name", ANY_PRIOR)
def test_the_denoiser_is_the_priors(name, noise):
    method, options = CONFIGURATIONS[name]
    prior = network_prior()
    posterior = prior.posterior(observations(noise), method=method, **options)
    for sigma in (0.01, 0.5, 20.0):
        x_t = sigma * torch.randn(N, *EVENT, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
        assert torch.equal(posterior(x_t, sigma)[EMPTY], prior(x_t, sigma)[EMPTY])
        evaluation = posterior.evaluate(x_t, torch.tensor(sigma, dtype=DOUBLE))
        twist = evaluation.log_likelihood(posterior.obs, torch.ones(N, *EVENT, dtype=DOUBLE), 3)
        assert (twist[EMPTY] == 0).all()  # nothing was measured: log 1
        assert torch.isfinite(twist).all()


def test_the_exact_denoiser_of_a_mixture_is_the_priors():
    means = torch.randn(3, *EVENT, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    prior = priors.MixturePrior(torch.ones(3, dtype=DOUBLE), means, torch.full((3,), 0.4, dtype=DOUBLE))
    posterior = prior.posterior(observations(), method="exact")
    x_t = torch.randn(N, *EVENT, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    # the same sum over components in two orders: rounding
    assert torch.allclose(posterior(x_t, 0.7)[EMPTY], prior(x_t, 0.7)[EMPTY], rtol=1e-13, atol=1e-13)


def test_one_pass_is_exact_if_all_or_nothing_is_measured():
    mask = ~EMPTY.reshape(N, 1, 1).expand(N, *EVENT)
    obs = Observations(torch.randn(N, *EVENT, dtype=DOUBLE), operators.Mask(mask), sigma=0.3)
    prior = network_prior()
    x_t = torch.randn(N, *EVENT, dtype=DOUBLE, generator=torch.Generator().manual_seed(1))
    exact = prior.posterior(obs, method="exact")(x_t, 0.7)
    # (σ⁻² + 0)^-½ may differ from σ in the last digit
    assert torch.allclose(exact[EMPTY], prior(x_t, 0.7)[EMPTY], rtol=1e-13, atol=1e-13)


def assert_moments(x, mean, cov):
    """Mean and covariance of n draws within four standard errors."""
    n, spread = len(x), cov.diagonal().sqrt()
    assert ((x.mean(0) - mean).abs() < 4 * spread / math.sqrt(n)).all()
    assert ((torch.cov(x.T) - cov).abs() < 4 * ((cov**2 + spread.outer(spread) ** 2) / n).sqrt()).all()


@pytest.mark.parametrize("sampler", ["ddpm2", "tds"])
def test_draws_are_those_of_the_prior(sampler):
    """64 second-order steps have a bias below 1 % of a standard deviation; 1,000 draws, four standard errors."""
    n = 1000
    cov = random_covariance(2, seed=3)
    prior = priors.GaussianPrior(torch.tensor([1.0, -2.0], dtype=DOUBLE), cov, sigma_max=30.0)
    obs = Observations(torch.zeros(n, 2, dtype=DOUBLE), operators.Mask(torch.zeros(n, 2)), sigma=0.1)
    options = {"particles": 2, "order": 2} if sampler == "tds" else {}
    x, statistics = prior.posterior(obs).sample(steps=64, sampler=sampler, return_stats=True, **options)
    assert_moments(x, prior.mean, cov)
    if sampler == "tds":
        assert (statistics.effective == 2).all()  # all particles have equal weights
        assert (statistics.resamplings == 0).all()


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("kind", ["dense", "low rank", "diagonal"])
def test_gaussian_draws_are_exactly_those_of_the_prior(kind, noise):
    """Matheron's rule without a correction: μ + Σ^½z, where z of each draw are the normal numbers of its address."""
    cov = {
        "dense": DenseCovariance(random_covariance(SIZE)),
        "low rank": LowRank(torch.randn(2, *EVENT, dtype=DOUBLE, generator=torch.Generator().manual_seed(5)), 0.3),
        "diagonal": Diagonal(torch.rand(EVENT, dtype=DOUBLE, generator=torch.Generator().manual_seed(6)) + 0.1),
    }[kind]
    prior = priors.GaussianPrior(torch.linspace(-1, 1, SIZE, dtype=DOUBLE).reshape(EVENT), cov)
    index = torch.arange(N)
    x = prior.draw_posterior(observations(noise), seed=3, lap=2, index=index, draw=1)
    z = Stream(3, "gaussian posterior", 2).normal(index, EVENT, draw=torch.ones_like(index), dtype=DOUBLE)
    assert torch.allclose(x[EMPTY], prior.exact_sample(z)[EMPTY], rtol=1e-14, atol=1e-14)
    assert torch.allclose(prior.posterior_mean(observations(noise))[EMPTY], prior.mean.expand(4, *EVENT), atol=1e-14)
    n = 20_000
    x = prior.draw_posterior(observations(noise, n, torch.ones(n, dtype=torch.bool)))
    matrix = torch.stack([cov.matvec(e.reshape(1, *EVENT)).flatten() for e in torch.eye(SIZE, dtype=DOUBLE)])
    assert_moments(x.flatten(1), prior.mean.flatten(), matrix)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.parametrize("rank", [None, 2])
def test_the_gaussian_fit_ignores_them(noise, rank):
    """They add nothing to the likelihood: the same rounds on the other observations give a bit-identical Gaussian."""
    n = 60
    empty = torch.arange(n) % 4 == 0
    obs = observations(noise, n, empty)
    histories = priors.FitHistory(), priors.FitHistory()
    parts = (obs, obs[(~empty).nonzero().flatten()])
    fits = [priors.fit_gaussian(o, rank, rounds=6, history=h) for o, h in zip(parts, histories, strict=True)]
    assert histories[0].log_likelihood == histories[1].log_likelihood
    assert torch.equal(fits[0].mean, fits[1].mean)
    v = torch.randn(1, *EVENT, dtype=DOUBLE)
    assert torch.equal(fits[0].covariance().matvec(v), fits[1].covariance().matvec(v))
    with pytest.raises(ValueError, match="no observation has a measured value"):
        priors.fit_gaussian(obs[empty.nonzero().flatten()], rank)
