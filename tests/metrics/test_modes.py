"""Metrics do not change under `torch.autocast`, which would compute products and convolutions in half precision."""

import pytest
import torch

from diffem import Observations, metrics, operators, priors
from diffem.linalg import LowRank
from diffem.metrics.images import ssim
from diffem.metrics.inception import load_extractor

from .extractors import FeaturesAndLogits, write_extractor
from .weights import write_lpips


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def observed():
    """Draws for four observations of six values in R⁸, with one hidden value each, and the prior."""
    obs = Observations(normal(4, 6), operators.Dense(normal(6, 8, seed=1)), cov=LowRank(0.1 * normal(2, 6), 0.2))
    visible, hidden = metrics.hide(obs, 0.2)
    prior = priors.GaussianPrior(torch.zeros(8), LowRank(normal(3, 8, seed=2), 0.5))
    return torch.stack([prior.draw_posterior(visible, draw=k) for k in range(6)]), obs, hidden, prior


MEASURES = {
    "sliced_wasserstein": lambda: metrics.sliced_wasserstein(normal(40, 5), normal(40, 5, seed=1)),
    "frechet": lambda: metrics.frechet(normal(40, 5), normal(40, 5, seed=1)),
    "frechet, more numbers than samples": lambda: metrics.frechet(normal(6, 50), normal(6, 50, seed=1)),
    "sinkhorn": lambda: metrics.sinkhorn(normal(40, 5), normal(40, 5, seed=1), reg=0.1),
    "crps": lambda: metrics.crps(normal(8, 4, 3), normal(4, 3, seed=1)),
    "coverage": lambda: metrics.coverage(normal(8, 4, 3), normal(4, 3, seed=1)),
    "psnr": lambda: metrics.psnr(normal(4, 8, 8), normal(4, 8, 8, seed=1)),
    "ssim": lambda: ssim(normal(2, 1, 16, 16), normal(2, 1, 16, 16, seed=1)),
    "predictive_log_likelihood": lambda: metrics.predictive_log_likelihood(*observed()[:3]),
    "exact_predictive_log_likelihood": lambda: metrics.exact_predictive_log_likelihood(observed()[3], *observed()[1:3]),
    "hidden_coverage": lambda: metrics.hidden_coverage(*observed()[:3]),
    "simulate": lambda: metrics.simulate(normal(4, 8), observed()[1]),
    "observation_distance": lambda: metrics.observation_distance(normal(4, 8), observed()[1]),
}


@pytest.mark.parametrize("name", MEASURES)
def test_autocast_changes_nothing(name):
    expected = torch.as_tensor(MEASURES[name]())
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.as_tensor(MEASURES[name]()), expected)


def test_autocast_does_not_change_measures_of_networks(tmp_path):
    x, y = (torch.rand(24, 3, 32, 32, generator=torch.Generator().manual_seed(k)) * 2 - 1 for k in range(2))
    lpips = metrics.load_lpips(write_lpips(tmp_path / "alexnet.ckpt"))
    extractor = load_extractor(write_extractor(tmp_path / "extractor.pt", FeaturesAndLogits()))

    def measured():
        features = metrics.features(metrics.to_uint8(x, (-1, 1)), extractor)
        reference = metrics.Reference.of_features(metrics.features(metrics.to_uint8(y, (-1, 1)), extractor))
        return lpips(x[:2], y[:2]), features, torch.tensor(metrics.frechet_distance(features, reference))

    expected = measured()
    with torch.autocast("cpu", torch.bfloat16):
        for got, want in zip(measured(), expected, strict=True):
            assert torch.equal(got, want)
