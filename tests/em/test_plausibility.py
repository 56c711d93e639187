"""Draws that are implausible under the prior are recognised, and rejected if the recipe sets `e_step.plausible`."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.expectation import draw_shard
from diffem.em.plausibility import LEVELS, denoising_error
from diffem.runs.recipe import EStep

# four points of the plane, two of them at the same height
MEANS = torch.tensor([[-2.0, 0.5], [2.0, 0.5], [-1.0, -2.0], [1.0, 2.0]])


def prior():
    return priors.MixturePrior(torch.full((4,), 0.25), MEANS, torch.full((4,), 0.05))


def error(x, **options):
    return denoising_error(prior(), x, torch.arange(len(x)), seed=0, lap=1, **options)


def test_a_gaussian_s_error_is_known():
    """d − x = −(σ² x + …)/(1 + σ²): at x ~ N(0, I) the error per dimension is 1/(1 + σ²), averaged over the levels."""
    wide = priors.GaussianPrior(torch.zeros(200), torch.eye(200))
    x = torch.randn(100, 200, generator=torch.Generator().manual_seed(0))
    expected = sum(1 / (1 + sigma**2) for sigma in LEVELS) / len(LEVELS)
    found = denoising_error(wide, x, torch.arange(100), seed=0, lap=1)
    assert float(found.mean()) == pytest.approx(expected, rel=0.01)


def test_between_the_modes_is_implausible():
    x = MEANS + 0.05 * torch.randn(4, 2, generator=torch.Generator().manual_seed(0))
    between = torch.tensor([[0.0, 0.5], [-1.5, -0.7]])
    assert error(x).max() < 1.5
    assert error(between).min() > 20


def test_the_error_does_not_depend_on_the_batch():
    x = MEANS.repeat(5, 1) + 0.05 * torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(error(x), error(x, batch_size=7))


def with_strays():
    """The same prior after training on outliers: a tenth of its mass is spread everywhere."""
    means = torch.cat([MEANS, torch.zeros(1, 2)])
    return priors.MixturePrior(torch.tensor([0.225] * 4 + [0.1]), means, torch.tensor([0.05] * 4 + [1.5]))


def heights(n=400):
    """Height 0.5, which two modes share."""
    y = 0.5 + 0.05 * torch.randn(n, 1, generator=torch.Generator().manual_seed(0))
    return Observations(y, operators.Dense(torch.tensor([[0.0, 1.0]])), sigma=0.05)


def strays(plausible, redraws=3, last=None):
    options = EStep(steps=16, iterations=1, plausible=plausible, redraws=redraws)
    n = 400
    shard = draw_shard(
        with_strays(), heights(n), options, index=torch.arange(n), seed=0, lap=1, bound=10.0, previous=last
    )
    return float((shard.x[0, :, 0].abs() < 1.5).double().mean()), shard.report


def test_implausible_draws_are_rejected_and_drawn_again():
    before, plain = strays(None)
    after, report = strays(3.0)
    assert before > 0.02
    assert after < before / 5
    assert report["rejected"] > plain["rejected"]
    assert report["redrawn"] > 0


def test_the_draw_of_the_previous_lap_replaces_an_implausible_one():
    on_a_mode = MEANS[:1].expand(1, 400, 2)
    after, report = strays(3.0, redraws=0, last=lambda: on_a_mode)
    assert after < strays(None)[0] / 5
    assert report["kept"] == report["rejected"] > 0
