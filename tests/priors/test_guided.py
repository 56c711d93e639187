"""Autoguidance: a closed form for Gaussians, and what a guided prior refuses."""

from __future__ import annotations

import pytest
import torch

from diffem import InputError, Observations, priors
from diffem.linalg import Isotropic


def gaussian(std: float, *, size: int = 3) -> priors.GaussianPrior:
    return priors.GaussianPrior(torch.full((size,), 0.5, dtype=torch.float64), Isotropic(std**2))


@pytest.mark.parametrize("weight", [1.5, 3.0])
def test_guidance_extrapolates_the_logarithm_of_a_standard_deviation(weight: float) -> None:
    s1, s0 = 0.8, 1.0
    # a deterministic sampler maps the starting noise linearly to the samples, so the ratio of norms is the ratio of
    # standard deviations; with 128 steps Heun's error is 4e-5 and 3e-4, with 64 steps three times as large
    plain, guided = (
        priors.GuidedPrior(gaussian(s1), gaussian(s0), w).sample(4, steps=128, sampler="heun", seed=0) - 0.5
        for w in (1.0, weight)
    )
    assert guided.norm() / plain.norm() == pytest.approx((s1 / s0) ** (weight - 1), rel=5e-4)


def test_with_weight_one_or_a_copy_as_weaker_prior_nothing_changes() -> None:
    prior, x = gaussian(0.8), torch.linspace(-3, 3, 6, dtype=torch.float64).reshape(2, 3)
    sigma = torch.tensor([0.1, 2.0], dtype=torch.float64)
    assert torch.equal(priors.GuidedPrior(prior, gaussian(2.0), 1)(x, sigma), prior(x, sigma))
    assert torch.equal(priors.GuidedPrior(prior, gaussian(0.8), 2.5)(x, sigma), prior(x, sigma))


def test_a_guided_prior_has_no_posterior() -> None:
    guided = priors.GuidedPrior(gaussian(0.8), gaussian(1.0))
    with pytest.raises(InputError, match="for samples only"):
        guided.posterior(Observations(torch.zeros(2, 3, dtype=torch.float64), sigma=0.1))


def test_priors_that_do_not_fit_and_weights_below_one_are_refused() -> None:
    with pytest.raises(InputError, match=r"\(3,\).*\(4,\)"):
        priors.GuidedPrior(gaussian(1.0), gaussian(1.0, size=4))
    with pytest.raises(InputError, match="float32"):
        priors.GuidedPrior(gaussian(1.0), gaussian(1.0).float())
    with pytest.raises(InputError, match=r"at least 1, got 0\.5"):
        priors.GuidedPrior(gaussian(1.0), gaussian(1.0), 0.5)
    with pytest.raises(InputError, match="weaker must be a prior, got str"):
        priors.GuidedPrior(gaussian(1.0), "weights")  # type: ignore[arg-type]
