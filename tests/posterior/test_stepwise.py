"""The last denoising of every method, and methods that were published as corrections of a step."""

import math

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.samplers import get_sampler

from .registry import CONFIGURATIONS
from .test_battery import EACH_FOR_ANY_PRIOR, EVENT, network_prior, observations


def scalar_problem(sigma_y, n, y=0.7):
    """x ~ N(0, 1) and n observations of the same y = x + noise: E[x | x_t, y] and the posterior N(m, s²) are known."""
    prior = priors.GaussianPrior(torch.zeros(1, dtype=torch.float64), torch.eye(1, dtype=torch.float64))
    obs = Observations(torch.full((n, 1), y, dtype=torch.float64), operators.Identity(), sigma=sigma_y)
    return prior, obs, y / (1 + sigma_y**2), sigma_y / math.sqrt(1 + sigma_y**2)


@EACH_FOR_ANY_PRIOR
@pytest.mark.parametrize("sigma_y", [1.0, 0.1, 1e-3, 1e-4])
def test_the_last_denoising_stays_within_the_noise_of_the_state(name, sigma_y):
    """For x_t ~ p(x_t | y) at σ_min, every method ends within 5 σ_min of E[x | x_t, y], for any number of steps.

    The result is an estimate of x given x_t, whose error is at most σ_min times a standard normal number; 5 bounds 200
    of these numbers.
    """
    method, options = CONFIGURATIONS[name]
    prior, obs, mean, spread = scalar_problem(sigma_y, 200)
    sigma = torch.tensor(prior.sigma_min, dtype=torch.float64)
    z = torch.randn(200, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x_t = mean + math.hypot(spread, prior.sigma_min) * z
    precision = 1 / prior.sigma_min**2 + 1 / spread**2
    exact = (x_t / prior.sigma_min**2 + mean / spread**2) / precision
    for steps in (16, 1000):
        posterior = prior.posterior(obs, method=method, **options).for_draw(get_sampler("ddpm"), steps, prior.sigma_min)
        assert float((posterior.finish(x_t, sigma).x_hat - exact).abs().max()) < 5 * prior.sigma_min


@pytest.mark.parametrize(("sampler", "steps"), [("ddpm", 16), ("ddpm", 256), ("ddim", 64), ("heun", 64)])
def test_draws_of_dps_stay_within_its_step(sampler, steps):
    """DPS always moves x_s by ζ' towards y, so its draws lie within ζ' of the posterior, also with more steps."""
    prior, obs, mean, spread = scalar_problem(0.1, 100)
    x = prior.posterior(obs, method="dps").sample(steps=steps, sampler=sampler)
    assert float((x - mean).abs().max()) < 0.5 + 5 * spread


def test_methods_that_correct_steps_reject_the_predictor_corrector():
    prior, obs = network_prior(), observations(2)
    for method in ("dps", "pigdm"):
        with pytest.raises(ValueError, match=f"'{method}' is defined as a correction of a step.*'pc'"):
            prior.posterior(obs, method=method).sample(steps=2, sampler="pc")
        assert torch.isfinite(prior.posterior(obs, method=method).sample(steps=2, sampler="pc", corrections=0)).all()


def test_published_strength_of_dps_follows_the_number_of_steps():
    """κ(T) c added to x̂ moves x_s by c: with twice the steps, the denoiser's correction is about twice as strong."""
    prior, obs = network_prior(), observations(4)
    x_t = torch.randn(4, *EVENT, dtype=torch.float64)
    base = prior(x_t, 0.5)
    weak = prior.posterior(obs, method="dps", reference_steps=500)(x_t, 0.5) - base
    strong = prior.posterior(obs, method="dps")(x_t, 0.5) - base
    ratio = -math.expm1(-2 * math.log(1e5) / 500) / -math.expm1(-2 * math.log(1e5) / 1000)
    assert torch.allclose(strong, ratio * weak)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("method", ["dps", "pigdm"])
def test_corrections_of_steps_have_the_published_strength_with_every_sampler(method, eta):
    """A step moves x_s by κ times the correction of x̂, which is divided by κ, so the result is the same for every η.

    κ of DDIM is about half of DDPM's, so with one κ for both, draws with ddim would be guided half as strongly.
    """
    prior, obs = network_prior(), observations(4)
    x_t = torch.randn(4, *EVENT, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    steps = 32

    def move(sampler):
        posterior = prior.posterior(obs, method=method).for_draw(sampler, steps, prior.sigma_min)
        row = sampler.table(prior.sigmas(steps))[20]
        noise = lambda slot: torch.zeros_like(x_t)  # noqa: E731
        guided, own = (sampler.step(d, sampler.start(x_t), row, noise)[0] for d in (posterior, prior))
        return guided - own

    torch.testing.assert_close(move(get_sampler("ddim", eta=eta)), move(get_sampler("ddpm")), rtol=1e-9, atol=1e-12)
