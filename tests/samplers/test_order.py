"""Order of convergence on an exact mixture prior, and the bias of every sampler on a Gaussian."""

import itertools
import math

import pytest
import torch

from diffem import priors
from diffem.core.randomness import Stream
from diffem.samplers import SAMPLERS, ddim, draw, get_sampler, schedule


def mixture():
    means = torch.tensor([[-1.5, 0.5], [1.0, 1.0], [0.2, -1.2]], dtype=torch.float64)
    stds = torch.tensor([0.5, 0.4, 0.6], dtype=torch.float64)
    return priors.MixturePrior(torch.tensor([0.3, 0.4, 0.3], dtype=torch.float64), means, stds)


def end_points(prior, sampler, steps, n=256):
    return draw(prior, prior.mean, torch.arange(n), schedule(steps, 1e-2, 20.0), sampler, Stream(0, "order"))


@pytest.mark.parametrize(
    ("name", "expected", "steps"),
    [("ddim", 1, (256, 512, 1024)), ("heun", 2, (128, 256, 512)), ("ddim2", 2, (256, 512, 1024))],
)
def test_deterministic_samplers_converge_with_their_order(name, expected, steps):
    """The deterministic samplers solve an ODE: halving the step divides the error of every end point by 2^order."""
    prior = mixture()
    # the second-order reference is four times finer than the finest run, so its error is 1/16 of that of a second-order
    # run
    truth = end_points(prior, get_sampler("heun"), 8 * steps[-1])
    errors = [float((end_points(prior, get_sampler(name), k) - truth).abs().mean()) for k in steps]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert orders[-1] == pytest.approx(expected, abs=0.15), f"{name}: errors {errors}, orders {orders}"


def gaussian_std(name, steps, std=1.0, **options):
    """The exact standard deviation that a sampler returns for N(0, std²).

    For a linear denoiser x_0 = a x_1 + Σ b_i z_i. Draws with a single unit noise give a and every b_i.
    """
    prior = priors.GaussianPrior(torch.zeros(1, dtype=torch.float64), std**2 * torch.ones(1, 1, dtype=torch.float64))
    sampler = get_sampler(name, **options)
    slots = 1 + steps * sampler.noises_per_step

    class UnitNoise:
        """Random numbers whose row i of the batch is 1 at address i and 0 elsewhere."""

        def normal(self, index, shape, *, step=0, draw=None, dtype):
            z = torch.zeros(len(index), *shape, dtype=dtype)
            z[step] = 1
            return z

    responses = draw(prior, prior.mean, torch.arange(slots), schedule(steps), sampler, UnitNoise())
    return float(responses.square().sum().sqrt())


def test_bias_of_the_default_is_far_below_that_of_ddpm():
    """EM would compound this error: the relative error of the standard deviation of a unit Gaussian."""
    assert gaussian_std("ddpm", 64) - 1 == pytest.approx(-0.0836, abs=5e-4)
    assert gaussian_std("ddim", 64) - 1 == pytest.approx(-0.0440, abs=5e-4)
    for steps in (18, 24, 32, 64, 256):
        assert abs(gaussian_std("ddpm2", steps) - 1) < 0.002
    assert abs(gaussian_std("ddim2", 64) - 1) < 0.002
    assert abs(gaussian_std("heun", 64) - 1) < 0.005
    assert abs(gaussian_std("pc", 256) - 1) < 0.005


@pytest.mark.parametrize("std", [0.05, 0.3, 1.0, 3.0])
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_one_calibration_serves_every_variance_and_stochasticity(eta, std):
    assert gaussian_std("ddim2", 18, std, eta=eta) / std - 1 == pytest.approx(0, abs=0.006)


@pytest.mark.parametrize("std", [0.05, 1.0])
def test_without_calibration_draws_are_too_wide_by_nearly_the_same_factor(std, monkeypatch):
    """Nearly, because the noise levels end at σ_min, which is closer to 0.05."""
    monkeypatch.setattr(ddim, "CALIBRATION", (1.0, 0.0, 0.0))
    assert gaussian_std("ddpm2", 18, std) / std - 1 == pytest.approx(0.0445, abs=2e-3)
    assert gaussian_std("ddpm", 18, std) / std - 1 == pytest.approx(-0.249, abs=1e-3)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_converges_to_the_gaussian(name):
    errors = [abs(gaussian_std(name, steps) - 1) for steps in (64, 1024)]
    assert errors[1] < 0.006
    assert errors[1] < errors[0]


def test_eta_interpolates_between_ddim_and_ddpm():
    prior = mixture()
    for name, eta in (("ddim", 0.0), ("ddpm", 1.0)):
        assert torch.equal(prior.sample(4, 16, name), prior.sample(4, 16, "ddim", eta=eta))
    # new noise in a step has variance σ_s² η² τ, with η² as in Eq. 3, not η as in Algorithm 2
    row = get_sampler("ddim", eta=0.5).table(schedule(16))[3]
    full = get_sampler("ddpm").table(schedule(16))[3]
    assert float(row[3] / full[3]) == pytest.approx(0.5)
