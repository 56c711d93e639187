"""Scores of draws against exact answers."""

import numpy as np
import pytest

from diffem.tables.scores import coverage, crps


def test_crps_of_a_normal_distribution():
    """E over x of the score of N(0, 1) for x ~ N(0, 1) is 1/√π."""
    random = np.random.default_rng(0)
    draws, x = random.standard_normal((4, 100_000)), random.standard_normal(100_000)
    # 100,000 values with a standard deviation below 1 each: four standard errors
    assert abs(crps(draws, x) - 1 / np.sqrt(np.pi)) < 0.0127


def test_crps_of_equal_draws_is_the_absolute_error():
    x = np.array([1.0, 2.0, -3.0])
    assert crps(np.zeros((5, 3)), x) == pytest.approx(2.0)


@pytest.mark.parametrize("k", [5, 20, 33])
@pytest.mark.parametrize("values", [None, 4])
def test_right_draws_cover_nine_tenths_for_any_number_of_draws_and_with_ties(k, values):
    random = np.random.default_rng(0)
    x = random.standard_normal((k + 1, 50_000))
    x = x if values is None else np.clip(np.rint(x), 0, values)
    # 50,000 values, each counted between 0 and 1: four standard errors
    assert abs(coverage(x[1:], x[0]) - 0.9) < 4 * 0.5 / np.sqrt(50_000)


def test_draws_that_are_too_narrow_cover_less():
    random = np.random.default_rng(0)
    assert coverage(0.5 * random.standard_normal((20, 10_000)), random.standard_normal(10_000)) < 0.65
