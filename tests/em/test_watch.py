"""What is watched: the χ² that draws should have."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.watch import expected_chi2, warnings
from diffem.runs.recipe import load_recipe


@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
def test_the_last_denoising_takes_from_the_residual(ratio):
    """Of draws under a wide prior, χ² is 1/(1 + σ_min²/σ_y²): their last denoising returns a mean."""
    sigma = 0.02
    torch.manual_seed(0)
    mask = torch.rand(64, 32) < 0.5
    prior = priors.GaussianPrior(torch.zeros(32), torch.eye(32), sigma_min=ratio * sigma)
    y = torch.where(mask, torch.randn(64, 32), 0)
    obs = Observations(y, operators.Mask(mask), sigma=sigma)
    x = prior.posterior(obs, iterations=1).sample(8, steps=64)
    measured = torch.stack([obs.chi2(d) for d in x]).mean()
    assert float(measured) == pytest.approx(expected_chi2(obs, prior.sigma_min), rel=0.1)
    assert expected_chi2(obs, prior.sigma_min) == pytest.approx(1 / (1 + ratio**2), rel=1e-5)


def test_warns_by_what_is_expected():
    recipe = load_recipe("digits")
    lap = {"lap": 2, "heldout_chi2": 0.3, "expected_chi2": 0.5}
    assert warnings([{"lap": 1}, lap], recipe) == []
    assert "should be about 1" in warnings([{"lap": 1}, lap | {"expected_chi2": 1.0}], recipe)[0]
    assert "should be about 0.5" in warnings([{"lap": 1}, lap | {"heldout_chi2": 1.1}], recipe)[0]
