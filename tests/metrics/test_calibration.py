"""Metrics of calibration on Gaussian draws, whose expected values are known."""

import math

import pytest
import torch

from diffem.metrics.calibration import coverage, covered, crps, predictive_coverage, ranks, student_quantile


def test_students_quantiles_agree_with_tables():
    """Values from tables, with three decimals."""
    table = {(0.95, 1): 6.314, (0.95, 7): 1.895, (0.975, 4): 2.776, (0.9, 30): 1.310}
    for (probability, degrees), value in table.items():
        assert student_quantile(probability, degrees) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("k", [2, 4, 8, 32])
def test_intervals_of_any_number_of_gaussian_draws_have_their_nominal_coverage(k):
    generator = torch.Generator().manual_seed(k)
    z = torch.randn(k + 1, 5, 8000, generator=generator, dtype=torch.float64)
    covered = predictive_coverage(3 + 2 * z[1:], 3 + 2 * z[0], 0.9)
    assert covered.shape == (5,)
    # 40,000 independent entries: standard deviation 0.0015
    assert float(covered.mean()) == pytest.approx(0.9, abs=0.006)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize("k", [1, 2, 4, 8, 16, 19, 20, 64])
def test_every_number_of_draws_covers_exactly_the_level(k, level):
    """All ranks 0 … k of the truth among calibrated draws are equally likely, so the mean over ranks is the level."""
    draws = torch.arange(k, dtype=torch.float64).reshape(k, 1, 1).expand(k, k + 1, 1)
    truth = torch.arange(k + 1, dtype=torch.float64).reshape(k + 1, 1) - 0.5
    inside = covered(draws, truth, level).flatten()
    assert float(inside.mean()) == pytest.approx(level, abs=1e-12)
    # a central interval: symmetric, and coverage never decreases towards the middle
    assert torch.allclose(inside, inside.flip(0))
    assert (inside[: k // 2 + 1].diff() >= -1e-12).all()
    assert float(coverage(draws, truth, level)) == pytest.approx(level, abs=1e-12)


def test_coverage_is_exact_for_any_distribution():
    """Eight skewed draws: the two outer ranks of nine count 0.55, the others 1."""
    generator = torch.Generator().manual_seed(0)
    x = torch.empty(9, 20_000, 1, dtype=torch.float64).exponential_(generator=generator)
    inside = coverage(x[1:], x[0])
    assert inside == pytest.approx(0.9, abs=4 * inside.standard_error)
    spread = 0.45 * math.sqrt(2 / 9 * 7 / 9)
    # the relative error of a standard deviation from 20,000 entries is half a per cent
    assert inside.standard_error == pytest.approx(spread / math.sqrt(20_000), rel=0.03)


def test_a_truth_equal_to_draws_has_the_mean_of_their_ranks():
    draws = torch.zeros(8, 2, 3)
    assert torch.allclose(covered(draws, torch.zeros(2, 3)), torch.tensor(0.9, dtype=torch.float64))
    # ranks 0 and 1, of which 0.55 and 1 are covered
    draws = torch.arange(8.0).reshape(8, 1, 1)
    assert float(covered(draws, torch.zeros(1, 1))) == pytest.approx((0.55 + 1) / 2)


def test_ranks_are_uniform_with_ties():
    """Counts and clipped values: truth and draws of one distribution have equal values."""
    k, n = 4, 50_000
    x = torch.randn(k + 1, n, 1, generator=torch.Generator().manual_seed(0))
    for values in (x, x.round(), x.clamp(min=0), torch.zeros_like(x)):
        share = torch.bincount(ranks(values[1:], values[0]).flatten(), minlength=k + 1) / n
        # five standard errors of a share
        torch.testing.assert_close(share, torch.full((k + 1,), 1 / (k + 1)), rtol=0, atol=5 * math.sqrt(0.2 * 0.8 / n))


@pytest.mark.parametrize("level", [0.0, 1.0, float("nan")])
def test_a_level_is_a_probability(level):
    with pytest.raises(ValueError, match="between 0 and 1"):
        coverage(torch.zeros(4, 3, 2), torch.zeros(3, 2), level)


def test_crps_of_a_gaussian():
    """For N(0, 1) and a truth t the score is t(2Φ(t) − 1) + 2φ(t) − 1/√π; the estimate from 4 draws has no bias."""
    t, n = 0.7, 200_000
    draws = torch.randn(4, 1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phi, big_phi = math.exp(-t * t / 2) / math.sqrt(2 * math.pi), 0.5 * (1 + math.erf(t / math.sqrt(2)))
    expected = t * (2 * big_phi - 1) + 2 * phi - 1 / math.sqrt(math.pi)
    score = crps(draws, torch.full((1, n), t, dtype=torch.float64))
    # an entry's estimate has a standard deviation of about 0.4
    assert float(score) == pytest.approx(expected, abs=4 * 0.4 / math.sqrt(n))


def test_the_crps_is_that_of_all_pairs_of_draws():
    draws, truth = torch.rand(5, 3, 2, 2, dtype=torch.float64), torch.rand(3, 2, 2, dtype=torch.float64)
    pairs = (draws[:, None] - draws[None]).abs().sum((0, 1)) / (5 * 4)
    expected = ((draws - truth).abs().mean(0) - pairs / 2).mean((1, 2))
    assert torch.allclose(crps(draws, truth), expected)


def test_one_draw_is_not_enough():
    for measure in (crps, predictive_coverage):
        with pytest.raises(ValueError, match="at least 2 draws, got 1"):
            measure(torch.zeros(1, 3, 2), torch.zeros(3, 2))
