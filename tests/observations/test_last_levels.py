"""The last noise level of posterior draws: a function of each observation alone."""

import math

import pytest
import torch

from diffem import Observations, operators
from diffem.observations.last_levels import last_levels, smallest_noise
from diffem.observations.scale import PROBED

DOUBLE = torch.float64


def test_every_observation_has_its_own_smallest_noise():
    n = 3 * PROBED
    sigma = torch.logspace(-6, 0, n, dtype=DOUBLE)
    obs = Observations(torch.zeros(n, 2, dtype=DOUBLE), sigma=sigma)
    torch.testing.assert_close(smallest_noise(obs), sigma)
    assert torch.equal(smallest_noise(obs[7:9]), smallest_noise(obs)[7:9])


def test_an_observation_without_measured_values_has_no_noise_to_stay_below():
    mask, sigma = torch.ones(4, 2, dtype=torch.bool), torch.full((4,), 0.5)
    mask[1], sigma[1] = False, 1e-3
    obs = Observations(torch.zeros(4, 2), operators.Mask(mask), sigma=sigma)
    assert smallest_noise(obs).tolist() == [0.5, math.inf, 0.5, 0.5]
    assert last_levels(obs, 0.1).tolist() == [0.1] * 4


def test_the_noise_of_a_measured_value_counts_and_that_of_others_does_not():
    mask = torch.tensor([[True, False], [False, True]])
    obs = Observations(torch.zeros(2, 2, dtype=DOUBLE), operators.Mask(mask), sigma=torch.tensor([0.1, 1e-5]).double())
    assert smallest_noise(obs).tolist() == pytest.approx([0.1, 1e-5])


def test_noise_is_compared_in_the_units_of_x():
    """With A and the noise both multiplied by a thousand, an observation gives the same information about x."""
    gains = torch.tensor([1.0, 1e3, 1e-3], dtype=DOUBLE)
    A = operators.Dense(gains.reshape(3, 1, 1) * torch.eye(4, dtype=DOUBLE)[:2])
    obs = Observations(torch.zeros(3, 2, dtype=DOUBLE), A, sigma=1e-5 * gains)
    assert smallest_noise(obs).tolist() == pytest.approx([1e-5] * 3)
    assert len(last_levels(obs, 1e-3).unique()) == 1


def test_levels_lie_below_a_quarter_of_small_noise_on_a_grid():
    sigma_min = 1e-3
    noise = torch.logspace(-7, 0, 4001, dtype=DOUBLE)
    levels = last_levels(Observations(torch.zeros(len(noise), 2, dtype=DOUBLE), sigma=noise), sigma_min)
    small = noise < 0.499 * sigma_min
    assert (levels[noise >= sigma_min / 2] == sigma_min).all()
    share = (levels / noise)[small]
    assert float(share.max()) < 0.2502
    assert float(share.min()) > 0.1249
    steps = (sigma_min / levels).log2()
    assert torch.equal(steps, steps.round())


def test_rounding_of_the_noise_does_not_change_the_level():
    """Limits of the grid are at round shares of sigma_min, where tests and users put their noise levels."""
    for share in (0.5, 0.25, 0.125):
        noise = 1e-3 * share * torch.tensor([1 - 1e-6, 1.0, 1 + 1e-6], dtype=DOUBLE)
        obs = Observations(torch.zeros(3, 2, dtype=DOUBLE), sigma=noise)
        assert len(last_levels(obs, 1e-3).unique()) == 1
    assert float(last_levels(obs[:1], 2e-3 * share)[0]) == 2e-3 * share  # half of sigma_min is not less than half


@pytest.mark.parametrize("exponent", [-30, 30])
def test_levels_have_the_units_of_the_data(exponent):
    factor = 2.0**exponent
    obs = Observations(torch.zeros(64, 3), sigma=torch.logspace(-6, 0, 64))
    assert torch.equal(last_levels(obs.scaled(factor), 1e-3 * factor), factor * last_levels(obs, 1e-3))
