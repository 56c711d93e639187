"""The predictive log-likelihood against exact answers, and its standard error."""

import math

import pytest
import torch
from scipy.stats import gamma

from diffem import Observations, metrics, operators, priors
from diffem.linalg import DenseCovariance
from diffem.metrics.estimate import clustered_mean
from diffem.metrics.evidence import exact_hidden_log_densities
from diffem.metrics.log_density import unbiased_log_density
from diffem.priors import marginal

from ..exact import random_covariance

DOUBLE = torch.float64


@pytest.mark.parametrize("k", [2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("noise", [1e-4, 0.01, 0.25, 1.0, 9.0])
def test_the_log_density_has_no_bias(k, noise):
    """The expectation of the estimate over all draws is the log density itself.

    k draws of N(0, 1) have a mean of distribution N(0, 1/k) and, independently, a variance S² with (k − 1) S² ~ χ² of k
    − 1 degrees of freedom. The test constructs draws with these values (ā ± S for k = 2, up to scale) and integrates
    over the two distributions by quadrature.
    """
    y, alpha = 0.7, (k - 1) / 2
    log_t = torch.linspace(-60 / min(alpha, 1.5), 8, 6001, dtype=DOUBLE)
    density = torch.from_numpy(gamma(alpha).pdf(log_t.exp().numpy())) * log_t.exp()
    # k numbers of mean 0 and variance 1, scaled
    shape = torch.linspace(-1, 1, k, dtype=DOUBLE)
    shape = shape / shape.std()
    totals = []
    # the estimate is quadratic in the mean, so two points with variance 1/k give its exact expectation
    for mean in (-1.0, 1.0):
        draws = mean / math.sqrt(k) + shape[:, None] * (log_t.exp() / alpha).sqrt()
        value = unbiased_log_density(torch.full_like(log_t, y), draws, torch.full_like(log_t, noise))
        totals.append(torch.trapezoid(value * density, log_t))
    exact = -0.5 * (y**2 / (1 + noise) + math.log(2 * math.pi * (1 + noise)))
    assert float(sum(totals) / 2) == pytest.approx(exact, abs=1e-6)


def test_at_least_two_draws_are_needed():
    with pytest.raises(ValueError, match="at least 2 draws, got 1"):
        unbiased_log_density(torch.zeros(3), torch.zeros(1, 3), torch.ones(3))


def gaussian(n, noise, seed=0):
    """A Gaussian prior over 6 numbers, observations of 4 combinations of them, and a third of the values hidden."""
    generator = torch.Generator().manual_seed(seed)
    prior = priors.GaussianPrior(torch.linspace(-1, 1, 6, dtype=DOUBLE), random_covariance(6, seed=3))
    A = operators.Dense(torch.randn(n, 4, 6, dtype=DOUBLE, generator=generator))
    y = A(prior.exact_sample(torch.randn(n, 6, dtype=DOUBLE, generator=generator)))
    y = y + noise * torch.randn(n, 4, dtype=DOUBLE, generator=generator)
    obs = Observations(y, A, sigma=noise)
    return prior, obs, *metrics.hide(obs, 0.33)


def conditional(prior, obs, hidden):
    """log p(hidden value | visible values), one by one."""
    cov, out = prior.covariance().matrix()[0], []
    for i in range(len(obs)):
        A = obs.A[i : i + 1]._tensors["matrix"][0]
        noise = (
            obs.cov[i : i + 1].matvec(torch.eye(4, dtype=DOUBLE))
            if obs.cov.batch
            else obs.cov.matvec(torch.eye(4, dtype=DOUBLE))
        )
        K, residual, visible = A @ cov @ A.T + noise, obs.y[i] - A @ prior.mean, ~hidden[i]
        for j in hidden[i].nonzero().flatten():
            gain = torch.linalg.solve(K[visible][:, visible], K[visible][:, j])
            variance = K[j, j] - gain @ K[visible][:, j]
            out.append(torch.distributions.Normal(gain @ residual[visible], variance.sqrt()).log_prob(residual[j]))
    return torch.stack(out)


@pytest.mark.parametrize("kind", ["white", "full"])
def test_a_gaussian_prior_predicts_in_closed_form(kind):
    prior, obs, _, hidden = gaussian(7, 0.3)
    if kind == "full":
        obs = Observations(obs.y, obs.A, cov=DenseCovariance(random_covariance(4, seed=5)))
    got = metrics.exact_predictive_log_likelihood(prior, obs, hidden)
    assert got == pytest.approx(float(conditional(prior, obs, hidden).mean()), rel=1e-10)


def test_masks_and_observations_without_values():
    """Blocks of the covariance agree with a general operator; an observation that measures nothing does not count."""
    generator = torch.Generator().manual_seed(1)
    prior = priors.GaussianPrior(torch.zeros(6, dtype=DOUBLE), random_covariance(6, seed=3))
    mask = torch.rand(9, 6, generator=generator) < 0.6
    mask[2] = False
    y = torch.randn(9, 6, dtype=DOUBLE, generator=generator)
    obs = Observations(y, operators.Mask(mask), sigma=0.3)
    dense = Observations(torch.where(mask, y, 0), operators.Dense(torch.diag_embed(mask.double())), sigma=0.3)
    hidden = mask & (torch.rand(9, 6, generator=generator) < 0.4)
    blocks = metrics.exact_predictive_log_likelihood(prior, obs, hidden)
    # a row of zeros measures noise alone, which is independent of the other values
    assert blocks == pytest.approx(metrics.exact_predictive_log_likelihood(prior, dense, hidden), rel=1e-10)
    without = torch.arange(9) != 2
    assert blocks == pytest.approx(
        metrics.exact_predictive_log_likelihood(prior, obs[without], hidden[without]), rel=1e-12
    )
    assert math.isnan(metrics.exact_predictive_log_likelihood(prior, obs, torch.zeros_like(hidden)))


@pytest.mark.parametrize("k", [4, 16])
@pytest.mark.parametrize("noise", [0.1, 1.0])
def test_draws_estimate_the_exact_answer(k, noise):
    """For a Gaussian prior, within four standard errors of the Monte-Carlo error of the difference."""
    prior, obs, visible, hidden = gaussian(1500, noise)
    draws = torch.stack([prior.draw_posterior(visible, draw=d) for d in range(k)])
    exact = metrics.exact_predictive_log_likelihood(prior, obs, hidden)
    drawn = metrics.predictive_log_likelihood(draws, obs, hidden)
    # both use the same hidden values: their common error cancels, and the errors of the draws remain
    monte_carlo = math.sqrt(max(drawn.standard_error**2 - exact.standard_error**2, 1e-6))
    assert abs(drawn - exact) < 4 * monte_carlo
    assert monte_carlo < 0.05


def test_the_right_noise_predicts_best():
    """Under the true prior, the right noise level predicts better than half and twice that level, even with 8 draws."""
    generator = torch.Generator().manual_seed(0)
    cov, n = random_covariance(6, seed=3), 4000
    prior = priors.GaussianPrior(torch.zeros(6, dtype=DOUBLE), cov)
    x = prior.exact_sample(torch.randn(n, 6, dtype=DOUBLE, generator=generator))
    mask = torch.rand(n, 6, generator=generator) < 0.7
    y = x + 0.5 * torch.randn(n, 6, dtype=DOUBLE, generator=generator)
    values = {}
    for level in (0.25, 0.5, 1.0):
        obs = Observations(y, operators.Mask(mask), sigma=level)
        visible, hidden = metrics.hide(obs, 0.3)
        draws = torch.stack([prior.draw_posterior(visible, draw=d) for d in range(8)])
        values[level] = metrics.predictive_log_likelihood(draws, obs, hidden)
    assert values[0.5] > max(values[0.25], values[1.0]) + 0.01


def test_the_standard_error_counts_observations():
    """Identical values of one observation are one piece of evidence."""
    value = torch.randn(50, 1, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    copies = clustered_mean(value.expand(50, 8))
    assert copies.standard_error == pytest.approx(float(value.std()) / math.sqrt(50), rel=1e-12)
    assert float(copies) == pytest.approx(float(value.mean()), rel=1e-12)
    # unequal numbers of values; compared with the spread over repetitions
    generator = torch.Generator().manual_seed(1)
    estimates = []
    for _ in range(400):
        level = torch.randn(60, 1, generator=generator, dtype=DOUBLE)
        selected = torch.rand(60, 5, generator=generator) < torch.rand(60, 1, generator=generator)
        estimates.append(clustered_mean(level + torch.randn(60, 5, generator=generator, dtype=DOUBLE), selected))
    spread = float(torch.tensor([float(e) for e in estimates]).std())
    mean_error = sum(e.standard_error for e in estimates) / len(estimates)
    # a standard deviation from 400 numbers: 3.5 %, and the formula's own first-order error
    assert mean_error == pytest.approx(spread, rel=0.12)


def test_an_estimate_behaves_like_a_number():
    estimate = metrics.Estimate(1.5, 0.25)
    assert estimate == 1.5
    assert f"{estimate:.2f}" == "1.50"
    assert str(estimate) == "1.5 ± 0.25"
    assert math.isnan(metrics.Estimate(1.5).standard_error)


def test_the_exact_measure_does_not_depend_on_the_batches(monkeypatch):
    """Every observation has its own hidden values, also those beyond the first batch."""
    prior, obs, _, hidden = gaussian(12, 0.2)
    whole = exact_hidden_log_densities(prior, obs, hidden)
    monkeypatch.setattr(marginal, "NUMBERS", 5 * 4 * 6)  # five observations at a time
    torch.testing.assert_close(exact_hidden_log_densities(prior, obs, hidden), whole, rtol=1e-12, atol=1e-12)
    assert len({tuple(row.tolist()) for row in hidden}) > 1


@pytest.mark.parametrize("together", [True, False])
def test_values_measured_together_are_hidden_together(together):
    mask = torch.rand(50, 1 if together else 3, 6, 6) < 0.5
    obs = Observations(torch.randn(50, 3, 6, 6), operators.Mask(mask.expand(50, 3, 6, 6).clone()), sigma=0.1)
    visible, hidden = metrics.hide(obs, 0.3)
    assert bool((hidden == hidden[:, :1]).all()) == together
    assert torch.equal(visible.measured | hidden, obs.measured)
