"""The smallest noise of a set of observations, which the last noise level of posterior draws follows."""

import pytest
import torch

from diffem import Observations, operators
from diffem.observations.scale import PROBED, smallest_noise


def test_one_precise_observation_among_many_is_found_at_any_place():
    n = 3 * PROBED
    for place in (0, 1, n // 2 + 1, n - 1):
        sigma = torch.full((n,), 0.5)
        sigma[place] = 1e-3
        assert smallest_noise(Observations(torch.zeros(n, 2), sigma=sigma)) == pytest.approx(1e-3)


def test_an_observation_without_measured_values_does_not_count():
    n = 2 * PROBED
    mask, sigma = torch.ones(n, 2, dtype=torch.bool), torch.full((n,), 0.5)
    mask[1], sigma[1] = False, 1e-3
    obs = Observations(torch.zeros(n, 2), operators.Mask(mask), sigma=sigma)
    assert smallest_noise(obs) == pytest.approx(0.5)
