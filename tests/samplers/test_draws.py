"""Draws against their exact distributions, and independence of batch and progress."""

import math

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.samplers import DEFAULT_SAMPLER, SAMPLERS, get_sampler, schedule

from ..exact import random_covariance

SIZE, DRAWS = 4, 20_000


def problem():
    prior = priors.GaussianPrior(torch.linspace(-1, 1, SIZE, dtype=torch.float64), random_covariance(SIZE, seed=3))
    matrix = torch.randn(2, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = torch.tensor([[0.7, -1.1]], dtype=torch.float64)
    return prior, Observations(y, operators.Dense(matrix), sigma=0.4), matrix


def test_default_draws_follow_the_exact_gaussian_posterior():
    """256 steps, 20,000 draws: the mean within 4 standard errors, the covariance within 3 %."""
    prior, obs, matrix = problem()
    cov = random_covariance(SIZE, seed=3)
    precision = torch.linalg.inv(cov) + matrix.T @ matrix / 0.4**2
    exact_cov = torch.linalg.inv(precision)
    exact_mean = exact_cov @ (torch.linalg.solve(cov, prior.mean) + matrix.T @ obs.y[0] / 0.4**2)

    x = prior.posterior(obs, iterations=2).sample(draws=DRAWS, steps=256, sampler=DEFAULT_SAMPLER)[:, 0]
    standard_error = exact_cov.diagonal().sqrt() / math.sqrt(DRAWS)
    assert ((x.mean(0) - exact_mean).abs() < 4 * standard_error).all()
    assert float((torch.cov(x.T) - exact_cov).norm() / exact_cov.norm()) < 0.03


@pytest.mark.parametrize("name", SAMPLERS)
def test_prior_draws_follow_the_mixture(name):
    """Weights and moments of a two-component mixture; 512 steps have less bias than 5,000 draws can resolve."""
    prior = priors.MixturePrior(
        torch.tensor([0.3, 0.7], dtype=torch.float64),
        torch.tensor([[-2.0, 0.0], [1.0, 1.0]], dtype=torch.float64),
        torch.tensor([0.3, 0.5], dtype=torch.float64),
    )
    n = 5_000
    x = prior.sample(n, steps=512, sampler=name)
    left = (x[:, 0] < -0.7).double().mean()
    assert abs(float(left) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / n) + 0.003  # 0.003: overlap of the tails
    cov = prior.covariance().matrix()[0]
    assert ((x.mean(0) - prior.mean).abs() < 4 * cov.diagonal().sqrt() / math.sqrt(n) + 0.01).all()
    assert float((torch.cov(x.T) - cov).norm() / cov.norm()) < 0.06


@pytest.mark.parametrize("name", SAMPLERS)
def test_draws_are_the_same_in_any_batch(name):
    prior, _, _ = problem()
    x = prior.sample(32, steps=12, sampler=name, seed=5)
    assert torch.allclose(prior.sample(32, steps=12, sampler=name, seed=5, batch_size=7), x, atol=1e-12)
    assert torch.allclose(prior.sample(8, steps=12, sampler=name, seed=5), x[:8], atol=1e-12)
    assert (prior.sample(32, steps=12, sampler=name, seed=6) - x).abs().max() > 0.1


def test_corrections_end_at_the_given_noise_level():
    prior, _, _ = problem()
    draws = {level: prior.sample(16, steps=8, sampler="pc", down_to=level) for level in (0.0, 1e-9, 1.0, 1e9)}
    assert torch.equal(draws[0.0], draws[1e-9])
    assert torch.allclose(draws[1e9], prior.sample(16, steps=8, sampler="ddim", eta=0.0), atol=1e-5)
    assert all((draws[1.0] - draws[level]).abs().max() > 0.1 for level in (0.0, 1e9))


def test_corrections_that_have_ended_are_not_evaluated():
    prior, obs, _ = problem()
    posterior = prior.posterior(obs)
    counts = []
    for level in (0.0, 1.0, 1e9):
        _, statistics = posterior.sample(steps=8, sampler="pc", down_to=level, corrections=2, return_stats=True)
        counts.append(int(statistics.evaluations[0]))
    reached = prior.sigmas(8)[1:]
    assert counts == [1 + 8 + 2 * int((reached >= level).sum()) for level in (0.0, 1.0, 1e9)]


def test_progress_does_not_change_a_draw(capsys):
    prior, _, _ = problem()
    assert torch.equal(prior.sample(4, steps=5, progress=True), prior.sample(4, steps=5, progress=False))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"n": 0}, "n must be a positive integer, got 0"),
        ({"n": 2, "steps": 0}, "steps must be a positive integer, got 0"),
        ({"n": 2, "sampler": "euler"}, "unknown sampler 'euler'; known: ddim, ddpm"),
        ({"n": 2, "sampler": "ddim", "eta": 2.0}, r"eta must lie in \[0, 1\], got 2.0"),
        ({"n": 2, "sampler": "heun", "eta": 1.0}, "'heun' does not take these options.*eta"),
        ({"n": 2, "sampler": "ddim2", "etaa": 1.0}, "'etaa': 1.0}; its options: eta"),
        ({"n": 2, "sampler": "ddpm2", "etaa": 1.0}, "'etaa': 1.0}; it has none"),
        ({"n": 2, "sampler": "pc", "tau": 1.5}, r"tau must lie in \(0, 1\), got 1.5"),
        ({"n": 2, "sampler": "pc", "down_to": -0.1}, "down_to must be finite and at least 0, got -0.1"),
        ({"n": 2, "sampler": "pc", "corrections": -1}, "corrections must be a non-negative integer, got -1"),
    ],
)
def test_bad_arguments_are_rejected(arguments, words):
    prior, _, _ = problem()
    with pytest.raises(ValueError, match=words):
        prior.sample(**arguments)


@pytest.mark.parametrize("steps", [1, 2, 64, 1000])
@pytest.mark.parametrize(
    ("name", "options"),
    [("ddim", {}), ("ddim", {"eta": 0.3}), ("ddpm", {}), ("ddim2", {}), ("ddpm2", {}), ("heun", {}), ("tds", {})],
)
def test_the_response_of_a_step(name, options, steps):
    """κ is what a step makes of x̂ = 1 from x_t = 0, and 1 after a very large step."""
    sampler, x = get_sampler(name, **options), torch.zeros(1, 1, dtype=torch.float64)
    row = sampler.table(schedule(steps, 1e-3, 1e2))[0]
    (x_s, *_) = sampler.step(lambda x_t, sigma: torch.ones_like(x_t), sampler.start(x), row, lambda slot: x)
    # the two slopes of Heun's method cancel up to σ_s/σ_t, 1e-5 in a single step
    assert sampler.response(math.log(1e5) / steps) == pytest.approx(float(x_s), rel=1e-10)
    assert sampler.response(50.0) == pytest.approx(1, rel=1e-15)
