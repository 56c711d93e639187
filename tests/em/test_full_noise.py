"""Noise that is correlated between measured values, through a whole run: start, draws, training, watch, files."""

import math

import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.em.held_out import expected_chi2
from diffem.linalg import DenseCovariance, LowRank
from diffem.metrics.evidence import exact_predictive_log_likelihood, hide, predictive_log_likelihood, simulate
from diffem.observations.last_levels import smallest_noise

from ..exact import matrix_of, random_covariance
from .small import RECIPE

SIZE = 4


def noise(n=None):
    """Σ_y with correlations up to 0.9, shared or one per observation."""
    correlation = 0.9 ** (torch.arange(SIZE)[:, None] - torch.arange(SIZE)).abs().double()
    matrix = 0.04 * correlation
    return DenseCovariance((matrix if n is None else torch.linspace(0.5, 1.5, n).reshape(-1, 1, 1) * matrix).float())


def observations(n=136, each=False):
    generator = torch.Generator().manual_seed(0)
    angle = 6.3 * torch.rand(n, generator=generator)
    x = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos(), angle.sin() ** 2], 1)
    mask = torch.rand(n, SIZE, generator=generator) < 0.7
    mask[:, 0] = True
    A, cov = operators.Mask(mask), noise(n if each else None)
    return Observations(A(x) + cov.sqrt(torch.randn(n, SIZE, generator=generator)), A, cov=cov)


QUICK = {"train.steps": 40, "e_step.steps": 10, "watch.samples": 8}
PARTICLES = {"e_step.sampler": "tds", "e_step.sampler_options": {"particles": 4}, "gaussian.rank": 2}


@pytest.mark.parametrize(("each", "changes"), [(False, {}), (True, PARTICLES)], ids=["mmps", "tds, low-rank start"])
def test_a_run_of_two_laps(each, changes, tmp_path):
    """The evaluation hides values of held-out observations: the noise of the others is the marginal of the whole."""
    run = diffem.fit(observations(each=each), RECIPE, tmp_path, changes=QUICK | changes, progress=False)
    assert [lap["lap"] for lap in run.laps] == [0, 1, 2]
    for lap in run.laps:
        assert math.isfinite(lap["predictive_log_likelihood"])
        assert 0.2 < lap["heldout_chi2"] < 2  # χ² of about three values, its median over 16 observations and 4 draws


def test_a_run_continues_with_the_covariance_from_a_file(tmp_path):
    obs = observations(each=True)
    obs.save(tmp_path / "obs.safetensors")
    changes = QUICK | {"laps": 1, "e_step.solver": "direct"}
    diffem.fit(obs, RECIPE, tmp_path / "run", changes=changes, progress=False)
    again = Observations.load(tmp_path / "obs.safetensors")
    longer = diffem.fit(again, RECIPE, tmp_path / "run", changes=changes | {"laps": 2}, progress=False)
    assert len(longer.laps) == 3


@pytest.mark.parametrize("each", [False, True])
def test_gaussian_draws_follow_the_exact_posterior(each):
    """Mean to the solver's tolerance; moments of 20,000 draws within four of their standard errors."""
    obs, n = observations(3, each).to(torch.float64), 20_000
    prior = priors.GaussianPrior(torch.linspace(-1, 1, SIZE, dtype=torch.float64), random_covariance(SIZE))
    mean = prior.posterior_mean(obs)
    rows, full = matrix_of(obs.A, (SIZE,), 3), obs.cov.matrix().expand(3, SIZE, SIZE)
    for i in range(3):
        keep = obs.measured[i]
        A, sigma_y = rows[i][keep], full[i][keep][:, keep]
        gain = random_covariance(SIZE) @ A.T @ torch.linalg.inv(A @ random_covariance(SIZE) @ A.T + sigma_y)
        expected = prior.mean + gain @ (obs.y[i][keep] - A @ prior.mean)
        assert torch.allclose(mean[i], expected, atol=1e-9)
        cov = random_covariance(SIZE) - gain @ A @ random_covariance(SIZE)
        x = prior.draw_posterior(obs[[i] * n])
        spread = cov.diagonal().sqrt()
        assert ((x.mean(0) - expected).abs() < 4 * spread / math.sqrt(n)).all()
        assert ((torch.cov(x.T) - cov).abs() < 4 * (cov**2 + spread.outer(spread) ** 2).sqrt() / math.sqrt(n)).all()


def test_simulated_noise_has_the_covariance():
    """4 standard errors of the covariance of 50,000 draws, on the entries measured together."""
    n = 50_000
    obs = observations(1)[[0] * n]
    matrix, keep = obs.cov.matrix()[0], obs.measured[0]
    e = simulate(torch.zeros(n, SIZE), obs)
    assert (e[:, ~keep] == 0).all()
    error = (torch.cov(e.T) - matrix)[keep][:, keep].abs()
    variance = matrix.diagonal()
    assert (error < 4 * ((matrix**2 + variance.outer(variance)) / n).sqrt()[keep][:, keep]).all()


def test_hidden_values_leave_the_marginal_covariance_of_the_others():
    obs = observations(40, each=True)
    partial, hidden = hide(obs, 0.5)
    v = torch.where(partial.measured, obs.y, 0)
    visible = obs.measured & ~hidden
    assert torch.equal(partial.measured, visible)
    expected = obs.cov.restrict(visible)
    assert torch.equal(partial.noise.solve(v), expected.solve(v))
    assert torch.equal(partial.noise.matvec(v), expected.matvec(v))


@pytest.mark.parametrize("kind", ["dense", "low rank"])
def test_hidden_values_are_predicted_with_the_noise_of_those_shown(kind):
    """The estimate from draws against the closed form, within four standard errors of 256 draws.

    Noise correlated by 0.9 is largely known from the values shown; taken for unknown, it moves the estimate by seven
    standard errors.
    """
    obs = observations(200).to(torch.float64)
    cov = obs.cov if kind == "dense" else LowRank(0.2 * torch.ones(1, SIZE, dtype=torch.float64), 0.01)
    obs = Observations(obs.y, obs.A, cov=cov)
    prior = priors.GaussianPrior(torch.zeros(SIZE, dtype=torch.float64), random_covariance(SIZE))
    partial, hidden = hide(obs, 0.4)
    many = partial[torch.arange(200).repeat(256)]
    draws = prior.draw_posterior(many).unflatten(0, (256, 200))
    estimate = predictive_log_likelihood(draws, obs, hidden)
    exact = exact_predictive_log_likelihood(prior, obs, hidden)
    per_draw = torch.tensor([float(predictive_log_likelihood(d, obs, hidden)) for d in draws.split(32)])
    assert abs(float(estimate) - float(exact)) < 4 * float(per_draw.std()) / math.sqrt(len(per_draw))


def test_the_chi2_to_expect_of_draws_that_end_at_sigma_min():
    """Under a wide prior a draw's last denoising leaves tr Σ(Σ + σ_min²)⁻¹ of the residual; 64 × 16 draws of about 3
    values."""
    obs = observations(64).to(torch.float64)
    wide = priors.GaussianPrior(torch.zeros(SIZE, dtype=torch.float64), 1e4 * torch.eye(SIZE, dtype=torch.float64))
    sigma_min, x = 0.1, torch.stack([wide.draw_posterior(obs, draw=d) for d in range(16)])
    noisy = x + sigma_min * torch.randn(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(0))
    posterior = wide.posterior(obs, solver="direct")
    chi2 = torch.stack([obs.chi2(posterior(x_t, sigma_min)) for x_t in noisy])
    expected, plain = float(expected_chi2(obs, torch.full((len(obs),), sigma_min)).mean()), float(chi2.mean())
    # four standard errors of the mean of the draws, and of a trace that 64 vectors of signs estimate
    assert abs(plain - expected) < 4 * float(chi2.std()) / math.sqrt(chi2.numel()) + 4 * 0.3 / math.sqrt(64)
    assert expected < 0.8


@pytest.mark.parametrize("each", [False, True])
def test_the_smallest_noise_is_that_of_the_most_precise_combination(each):
    obs = observations(40, each)
    smallest = torch.linalg.eigvalsh(obs.cov.matrix())[:, 0].sqrt().double().expand(40)
    # float32 and eigenvalues that differ by 30
    torch.testing.assert_close(smallest_noise(obs), smallest, rtol=1e-4, atol=0)
