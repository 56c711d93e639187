"""Weighted draws converge to the posterior of the prior's own samples, for any solver, noise and σ_min."""

import math

import pytest
import torch

from benchmarks.twisted import exact_draws, floors, to_exact, unequal_noise
from diffem import Observations, operators, priors
from diffem.linalg import Diagonal
from diffem.posterior.likelihood import lanczos_logdet

DOUBLE = torch.float64


def test_unequal_noise_and_the_default_solver():
    """Sliced W₁ to exact draws, relative to that between exact draws: at most 1.1 plus the Monte-Carlo spread.

    Three iterations of conjugate gradients do not solve a system of six values whose noise is this unequal.
    """
    draws, sets, seed = 250, 6, 0
    prior, obs, whitened = unequal_noise(seed)
    exact = exact_draws(prior, whitened, draws * sets, seed).split(draws)
    posterior = prior.posterior(obs, "mmps")  # without a name, a mixture is conditioned exactly
    x = posterior.sample(draws=draws, steps=128, sampler="tds", particles=8, seed=seed)[:, 0]
    floor = floors(exact)
    assert to_exact(x, exact) < 1.1 * floor.mean() + 2 * floor.std()


def test_the_determinant_of_a_scaled_system():
    """zᵀ log(SMS) z averaged over all sign vectors z is exactly the trace; log |S| is subtracted again."""
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=DOUBLE)] * 3)  # (8, 3)
    matrix = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    variances, sigma = torch.tensor([1e-4, 1.0, 1e2], dtype=DOUBLE), torch.tensor(0.3, dtype=DOUBLE)
    obs = Observations(torch.zeros(8, 3, dtype=DOUBLE), operators.Dense(matrix), cov=Diagonal(variances))
    prior = priors.GaussianPrior(torch.zeros(4, dtype=DOUBLE), 2 * torch.eye(4, dtype=DOUBLE))
    system = prior.posterior(obs).evaluate(torch.zeros(8, 4, dtype=DOUBLE), sigma).system
    assert system.scale is not None
    exact = torch.logdet(torch.diag(variances) + 2 * 0.09 / 2.09 * matrix @ matrix.T)
    assert float(lanczos_logdet(system, signs, obs, 3).mean()) == pytest.approx(float(exact), rel=1e-9)


def test_the_distribution_of_weighted_draws_at_a_large_last_noise_level():
    """For x ~ N(0, 1), D(x_t) at σ_min = 0.5 has variance 1/(1 + σ_min²).

    Draws follow the posterior of that Gaussian exactly. Ending with E[x | x_t, y] instead of D(x_t) would use y twice,
    and draws would be too narrow.
    """
    sigma_min, n, y = 0.5, 500, 1.0
    prior = priors.GaussianPrior(torch.zeros(1, dtype=DOUBLE), torch.eye(1, dtype=DOUBLE), sigma_min=sigma_min)
    variance = 1 / (1 + sigma_min**2)
    for sigma_y in (0.5, 2.0):
        obs = Observations(torch.full((n, 1), y, dtype=DOUBLE), operators.Identity(), sigma=sigma_y)
        x = prior.posterior(obs).sample(steps=48, sampler="tds", particles=16)
        exact = 1 / (1 / variance + 1 / sigma_y**2)
        mean, error = exact * y / sigma_y**2, math.sqrt(exact / n)
        assert abs(float(x.mean()) - mean) < 4 * error
        # four standard errors of a variance, and 3 % for the error of 48 steps over this range
        assert abs(float(x.var()) / exact - 1) < 4 * math.sqrt(2 / n) + 0.03
