"""Distances against exact optimal transport and closed forms."""

import math

import pytest
import torch

from diffem import Observations, metrics, operators


def test_sliced_distance_of_a_shift():
    x = torch.randn(500, 3, generator=torch.Generator().manual_seed(0))
    # every projection of the shift by v has |v·u|, whose mean over the sphere in three dimensions is |v|/2
    assert metrics.sliced_wasserstein(x, x + torch.tensor([2.0, 0, 0]), slices=4000) == pytest.approx(1.0, rel=0.05)
    assert metrics.sliced_wasserstein(x, x[torch.randperm(500)]) == pytest.approx(0.0, abs=1e-6)


def test_sliced_distance_of_sets_of_different_sizes():
    x = torch.randn(2000, 2, generator=torch.Generator().manual_seed(0))
    assert metrics.sliced_wasserstein(x, torch.cat([x, x])) < 0.01


def test_the_frechet_distance_of_gaussians_is_exact():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(200_000, 2, generator=generator, dtype=torch.float64)
    y = torch.randn(200_000, 2, generator=generator, dtype=torch.float64) * torch.tensor([2.0, 0.5]) + torch.tensor(
        [1.0, 0]
    )
    assert metrics.frechet(x, y) == pytest.approx(1 + 1 + 0.25, rel=0.02)


def test_sets_that_cannot_be_compared_are_errors():
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

    def test_simulated_observations_of_the_truth_are_distributed_like_the_real_ones(self):
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


def test_errors_of_images_count_unmeasured_entries():
    obs = Observations(torch.zeros(2, 2, 2), operators.Mask(torch.tensor([[True, False], [False, True]])), sigma=1.0)
    truth = torch.zeros(2, 2, 2)
    x = truth.clone()
    x[:, 0, 0] = 7.0  # measured entries do not count
    x[:, 0, 1] = 2.0
    assert metrics.mse_unmeasured(x, truth, obs) == pytest.approx(2.0)
    assert float(metrics.psnr(truth + 0.4, truth)[0]) == pytest.approx(20.0, abs=1e-4)


UNEVEN = torch.tensor([[True, False, False], [True, True, False], [False, True, True]])
BELOW = torch.cat([torch.ones(1, 3, dtype=torch.bool), ~UNEVEN])
MEAN = torch.full((3, 3), 1 / 9)


@pytest.mark.parametrize(
    ("A", "shape", "missing"),
    [
        (operators.Fourier(UNEVEN, complex=True), (3, 3, 2), None),
        (operators.Compose(operators.Mask(UNEVEN), operators.Blur(MEAN, "circular")), (3, 3), None),
        (operators.Mask(torch.ones(3, 3, dtype=torch.bool)), (3, 3), None),
        (operators.Compose(operators.Mask(UNEVEN), operators.Mask(UNEVEN.T)), (3, 3), ~(UNEVEN & UNEVEN.T)),
        (operators.Compose(operators.Mask(UNEVEN), operators.Crop((3, 3), (4, 3), 1)), (4, 3), BELOW),
    ],
    ids=["k-space", "masked blur", "complete", "two masks", "window"],
)
def test_errors_on_unmeasured_entries_are_those_of_x_and_not_of_y(A, shape, missing):
    truth = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0))
    obs = Observations(A(truth), A, sigma=1.0)
    squares = truth.square()
    expected = squares.mean() if missing is None else squares[:, missing].mean()
    assert metrics.mse_unmeasured(torch.zeros_like(truth), truth, obs) == pytest.approx(float(expected))
    assert torch.equal(obs.backprojected()[0].isnan(), torch.zeros(shape).bool() if missing is None else missing)


@pytest.mark.parametrize(("n", "m"), [(5, 3), (7, 20), (100, 99)])
@pytest.mark.parametrize("p", [1, 2])
def test_sets_of_different_sizes_have_the_distance_of_their_copies(n, m, p):
    # m copies of one set and n of the other are two sets of equal size and of the same distributions
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(k, 3, generator=generator, dtype=torch.float64) for k in (n, m))
    expected = metrics.sliced_wasserstein(x.repeat(m, 1), y.repeat(n, 1), p=p, slices=70)
    assert metrics.sliced_wasserstein(x, y, p=p, slices=70) == pytest.approx(expected, rel=1e-12)
