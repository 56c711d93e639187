"""Measures of calibration on Gaussian draws, where what to expect is known."""

import math

import pytest
import torch

from diffem.metrics.calibration import crps, predictive_coverage, student_quantile


def test_students_quantiles():
    """From the tables, three decimals."""
    table = {(0.95, 1): 6.314, (0.95, 7): 1.895, (0.975, 4): 2.776, (0.9, 30): 1.310}
    for (probability, degrees), value in table.items():
        assert student_quantile(probability, degrees) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("k", [2, 4, 8, 32])
def test_gaussian_draws_of_any_number_cover_what_they_promise(k):
    generator = torch.Generator().manual_seed(k)
    z = torch.randn(k + 1, 5, 8000, generator=generator, dtype=torch.float64)
    covered = predictive_coverage(3 + 2 * z[1:], 3 + 2 * z[0], 0.9)
    assert covered.shape == (5,)
    # 40,000 independent entries: standard deviation 0.0015
    assert float(covered.mean()) == pytest.approx(0.9, abs=0.006)


def test_crps_of_a_gaussian():
    """For N(0, 1) and a truth t the score is t(2Φ(t) − 1) + 2φ(t) − 1/√π; the estimate from 4 draws has no bias."""
    t, n = 0.7, 200_000
    draws = torch.randn(4, 1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi, big_phi = math.exp(-t * t / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(t / math.sqrt(2)))
    expected = t * (2 * big_phi - 1) + 2 * phi - 1 / math.sqrt(math.pi)
    score = crps(draws, torch.full((1, n), t, dtype=torch.float64))
    # an entry's estimate has a standard deviation of about 0.4
    assert float(score) == pytest.approx(expected, abs=4 * 0.4 / math.sqrt(n))


def test_crps_by_pairs():
    draws, truth = torch.rand(5, 3, 2, 2, dtype=torch.float64), torch.rand(3, 2, 2, dtype=torch.float64)
    pairs = (draws[:, None] - draws[None]).abs().sum((0, 1)) / (5 * 4)
    expected = ((draws - truth).abs().mean(0) - pairs / 2).mean((1, 2))
    assert torch.allclose(crps(draws, truth), expected)


def test_one_draw_is_not_enough():
    for measure in (crps, predictive_coverage):
        with pytest.raises(ValueError, match="at least 2 draws, got 1"):
            measure(torch.zeros(1, 3, 2), torch.zeros(3, 2))
