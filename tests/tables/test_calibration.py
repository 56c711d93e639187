"""Calibration on hidden values: the spread of draws, the sharpness of probabilities, and the choice of laps."""

import numpy as np
import pytest

from diffem.tables.calibration import fitted_exponent, sharpened, spread_factors
from diffem.tables.drawing import Draws
from diffem.tables.held_out import HiddenValues, best_mixture
from diffem.tables.predictions import correction
from diffem.tables.scores import coverage


def held(spread: tuple[float, ...], n: int = 1500, draws: int = 40) -> HiddenValues:
    """Values x ~ N(0, 1), all hidden, and draws with mean 0 and these standard deviations."""
    random = np.random.default_rng(0)
    z = random.standard_normal((n, len(spread)))
    x = random.standard_normal((draws, *z.shape)) * spread
    return HiddenValues(z, np.ones(z.shape, dtype=bool), Draws(x, np.zeros(z.shape)))


@pytest.mark.parametrize("spread", [(0.7, 0.7), (1.4, 1.4), (0.7, 1.4)])
def test_draws_become_as_wide_as_their_errors(spread):
    found = held(spread)
    factors = spread_factors(found, lambda x: x, np.ones(2, dtype=bool))
    # a column counts 15 times as much as the table; 1,500 values tell a standard deviation to 3 %
    np.testing.assert_allclose(factors * spread, 1, rtol=0.13)
    stretched = found.drawn.scaled(factors).x.reshape(40, -1)
    assert abs(coverage(stretched, found.z.ravel()) - 0.9) < 0.005  # it is fitted: the grid of factors is interpolated


def test_categories_and_few_values_are_left_as_they_are():
    numeric = np.array([True, False])
    assert spread_factors(held((0.5, 0.5)), lambda x: x, numeric)[1] == 1
    assert (spread_factors(held((0.5, 0.5), n=20), lambda x: x, np.ones(2, dtype=bool)) == 1).all()


def test_probabilities_that_are_too_sure_are_flattened():
    """Codes drawn with p^½, normalised, have the least log-loss by the exponent ½."""
    random = np.random.default_rng(0)
    p = random.dirichlet([1, 1, 1], 20_000)
    right = sharpened(p, 0.5)
    codes = (right.cumsum(1) < random.random((len(p), 1))).sum(1)
    np.testing.assert_allclose(right.sum(1), 1)
    assert abs(fitted_exponent([p], [codes]) - 0.5) <= 0.05  # one step of the grid
    assert fitted_exponent([], []) == 1


def test_the_best_draws_are_taken_and_mixtures_where_they_help():
    random = np.random.default_rng(0)
    x = random.standard_normal(2000)
    signal = x + random.standard_normal((2, 1, 2000))  # two independent measurements of x
    near, other, off = (s + 0.1 * random.standard_normal((8, 2000)) for s in (*signal, 5 + signal[0]))
    assert best_mixture([off, near], x)[0] == 1
    assert set(best_mixture([off, near, other], x)) == {1, 2}


def test_the_mean_is_corrected_exactly_if_values_are_linear_in_their_code():
    z = np.random.default_rng(0).standard_normal((5, 7))
    draws, mean = 3 * z + 2, np.linspace(-1, 1, 7)
    np.testing.assert_allclose(draws.mean(0) + correction(draws, z, mean), 3 * mean + 2, atol=1e-12)
    assert (correction(np.ones((5, 7)), np.zeros((5, 7)), mean) == 0).all()
