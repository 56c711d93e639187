"""Distances against exact optimal transport and closed forms."""

import math

import numpy as np
import pytest
import torch

from diffem import Observations, metrics, operators
from diffem.metrics import distances
from diffem.metrics.distances import entropic_cost


def test_sliced_distance_of_a_shift():
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    # every projection of the shift by v has |v·u|, whose mean over the sphere in three dimensions is |v|/2
    assert metrics.sliced_wasserstein(x, x + torch.tensor([2.0, 0, 0]), slices=4000) == pytest.approx(1.0, rel=0.05)
    assert metrics.sliced_wasserstein(x, x[torch.randperm(500)]) == pytest.approx(0.0, abs=1e-6)


def test_sliced_distance_of_sets_of_different_sizes():
    x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    assert metrics.sliced_wasserstein(x, torch.cat([x, x])) < 0.01


@pytest.mark.parametrize("n", [200])
def test_sinkhorn_tends_to_optimal_transport(n):
    import ot

    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(n, 2, generator=generator), torch.randn(n, 2, generator=generator) + 1
    weights = np.ones(n) / n
    cost = ot.dist(x.double().numpy(), y.double().numpy())
    exact = ot.emd2(weights, weights, cost)
    assert metrics.sinkhorn(x, y, reg=1e-3) == pytest.approx(exact, rel=0.02)
    plan = ot.sinkhorn(weights, weights, cost, 0.1, method="sinkhorn_log", numItermax=5000, stopThr=1e-10)
    entropic = (plan * cost).sum() + 0.1 * (plan * np.log(plan * n**2)).sum()
    assert metrics.sinkhorn(x, y, reg=0.1, debias=False) == pytest.approx(entropic, rel=1e-3)
    assert metrics.sinkhorn(x, x.clone(), reg=0.1) == pytest.approx(0.0, abs=1e-3)


def test_sinkhorn_converges_where_mass_travels_along_a_curve():
    """Points on a curve, denser at one end than at the other: plain iterations at this regularisation stop 15 % too low."""
    import ot

    z = torch.linspace(0, 1, 300, dtype=torch.float64)
    curve = torch.stack([8 * z, torch.sin(9 * z)], 1)
    other = torch.stack([8 * z**1.2, torch.sin(9 * z**1.2)], 1)
    weights = np.ones(300) / 300
    exact = ot.emd2(weights, weights, ot.dist(curve.numpy(), other.numpy()))
    assert metrics.sinkhorn(curve, other) == pytest.approx(exact, rel=0.01)
    assert metrics.sinkhorn(curve.float(), other.float()) == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("small", [0, 1 << 20], ids=["as given", "in double precision"])
@pytest.mark.parametrize("n", [1, 2, 4, 16])
def test_few_points_far_apart(n, small, monkeypatch):
    """Potentials climb by the same step again and again there, from which nothing can be extrapolated."""
    import ot

    monkeypatch.setattr(distances, "SMALL", small)
    weights = np.ones(n) / n
    for seed in range(12):
        generator = torch.Generator().manual_seed(seed)
        x, y = (10 * torch.randn(n, 3, generator=generator) for _ in range(2))
        exact = ot.emd2(weights, weights, ot.dist(x.double().numpy(), y.double().numpy()))
        # the entropy of a plan that is a permutation, and the digits of costs of a few hundred
        assert entropic_cost(x, y, 1e-3) == pytest.approx(exact + 1e-3 * math.log(n), rel=1e-6)


@pytest.mark.parametrize("reg", [1e-3, 0.1, 10.0])
def test_a_set_with_itself_costs_as_much_as_with_its_copy(reg):
    """Found apart and in fewer iterations; a dense curve, a cloud and a cluster far from both."""
    generator = torch.Generator().manual_seed(0)
    z = torch.linspace(0, 8, 200, dtype=torch.float64)
    cloud = torch.randn(100, 2, generator=generator, dtype=torch.float64)
    x = torch.cat([torch.stack([z, z.sin()], 1), cloud, 0.01 * cloud[:20] + 50])
    assert entropic_cost(x, None, reg) == pytest.approx(entropic_cost(x, x.clone(), reg), rel=1e-4)


def test_frechet_of_gaussians():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(200_000, 2, generator=generator, dtype=torch.float64) * torch.tensor([2.0, 0.5]) + torch.tensor(
        [1.0, 0]
    )
    assert metrics.frechet(x, y) == pytest.approx(1 + 1 + 0.25, rel=0.02)


def test_bad_sets():
    with pytest.raises(ValueError, match=r"\(2,\) and \(3,\)"):
        metrics.frechet(torch.randn(5, 2), torch.randn(5, 3))
    with pytest.raises(ValueError, match="at least two"):
        metrics.sliced_wasserstein(torch.randn(1, 2), torch.randn(5, 2))


class TestEvidence:
    def observations(self, n=2000):
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(n, 5, generator=generator)
        mask = torch.rand(n, 5, generator=generator) < 0.7
        return Observations(x + 0.5 * torch.randn(n, 5, generator=generator), operators.Mask(mask), sigma=0.5), x

    def test_hidden_values_are_measured_ones_and_no_longer_condition(self):
        obs, _ = self.observations()
        partial, hidden = metrics.hide(obs, 0.25)
        assert (hidden <= obs.measured).all()
        assert torch.equal(partial.measured, obs.measured & ~hidden)
        share = hidden.sum() / obs.measured.sum()
        assert float(share) == pytest.approx(0.25, abs=0.02)

    def test_predictive_likelihood_of_the_true_predictive(self):
        """Draws independent of y: a hidden value is N(0, 1 + σ²), whose mean log density is −½ log(2πe(1 + σ²))."""
        obs, _ = self.observations()
        _, hidden = metrics.hide(obs, 0.5)
        draws = torch.randn(200, len(obs), 5, generator=torch.Generator().manual_seed(1))
        expected = -0.5 * math.log(2 * math.pi * math.e * 1.25)
        assert metrics.predictive_log_likelihood(draws, obs, hidden) == pytest.approx(expected, abs=0.03)
        assert metrics.predictive_log_likelihood(3 * draws, obs, hidden) < expected - 0.3

    def test_simulated_observations_of_the_truth_look_like_the_real_ones(self):
        obs, x = self.observations()
        right = metrics.observation_distance(x[torch.randperm(len(x))], obs)
        wrong = metrics.observation_distance(1.5 * x, obs)
        assert right < 0.05 < wrong


def test_coverage_of_calibrated_draws():
    generator = torch.Generator().manual_seed(0)
    truth, draws = torch.randn(5000, 3, generator=generator), torch.randn(64, 5000, 3, generator=generator)
    assert metrics.coverage(draws, truth, 0.9) == pytest.approx(0.9, abs=0.015)
    assert metrics.coverage(0.5 * draws, truth, 0.9) < 0.7
    ranks = metrics.ranks(draws, truth).double()
    assert float(ranks.mean()) == pytest.approx(32, abs=0.5)


def test_errors_of_images():
    obs = Observations(torch.zeros(2, 2, 2), operators.Mask(torch.tensor([[True, False], [False, True]])), sigma=1.0)
    truth = torch.zeros(2, 2, 2)
    x = truth.clone()
    x[:, 0, 0] = 7.0  # measured: not counted
    x[:, 0, 1] = 2.0
    assert metrics.mse_unmeasured(x, truth, obs) == pytest.approx(2.0)
    assert float(metrics.psnr(truth + 0.4, truth)[0]) == pytest.approx(20.0, abs=1e-4)
