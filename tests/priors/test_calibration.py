"""Gains and offsets of groups of observations."""

from __future__ import annotations

import pytest
import torch

from diffem import InputError, Observations, operators
from diffem.priors.calibration import calibrate

GAIN, OFFSET = torch.tensor([1.0, 0.7, 1.5]), torch.tensor([0.0, 0.4, -0.6])


def instrument(n: int = 2400, size: int = 6) -> tuple[Observations, torch.Tensor, torch.Tensor]:
    """Masked samples seen by three instruments, the labels of these, and y without gain and offset."""
    g = torch.Generator().manual_seed(0)
    x = torch.randn(n, size, generator=g) @ torch.randn(size, size, generator=g) + torch.linspace(-2, 2, size)
    labels = torch.arange(n) % 3
    mask = torch.rand(n, size, generator=g) < 0.8
    y = GAIN[labels, None] * x + OFFSET[labels, None] + 0.1 * torch.randn(n, size, generator=g)
    return Observations(y, operators.Mask(mask), sigma=0.1), labels, x


def test_gains_and_offsets_are_found_within_two_per_cent():
    obs, labels, _ = instrument()
    found = calibrate(obs, 5 + labels)
    assert found.gain[0] == 1
    assert found.offset[0] == 0
    assert found.gain_error[1:].max() < 0.02
    assert found.gain.tolist() == pytest.approx(GAIN.tolist(), rel=0.02)
    size = float(obs.y[obs.measured].square().mean().sqrt())
    assert found.offset.tolist() == pytest.approx(OFFSET.tolist(), abs=0.02 * size)


def test_samples_in_a_subspace_are_calibrated_too():
    """A Gaussian that is fitted on and on cannot move its mean where its covariance has become 0."""
    g, labels = torch.Generator().manual_seed(0), torch.arange(600) % 3
    x = torch.randn(600, 4, generator=g) @ torch.randn(4, 6, generator=g) + 2
    gain, offset = torch.tensor([1.0, 1.5, 0.5]), torch.tensor([0.0, 1.0, -1.0])
    y = gain[labels, None] * x + offset[labels, None] + 0.1 * torch.randn(600, 6, generator=g)
    found = calibrate(Observations(y, sigma=0.1), labels)
    assert ((found.gain / gain).log()[1:].abs() < 4 * found.gain_error[1:]).all()
    assert ((found.offset - offset)[1:].abs() < 4 * found.offset_error[1:]).all()


def test_corrected_observations_are_those_of_the_reference():
    obs, labels, x = instrument(300)
    found = calibrate(obs, labels)
    corrected = found.apply(obs, labels)
    by_hand = (obs.y - found.offset.float()[labels, None]) / found.gain.float()[labels, None]
    measured = obs.measured.expand_as(obs.y)
    torch.testing.assert_close(corrected.y[measured], by_hand[measured])
    spread = corrected.cov.diagonal((6,)).sqrt()[:, 0]
    torch.testing.assert_close(spread, 0.1 / found.gain.float()[labels])
    assert corrected.chi2(x).mean() < obs.chi2(x).mean() / 10  # the true samples explain them far better


def test_what_cannot_be_calibrated_is_rejected():
    obs, labels, _ = instrument(30)
    with pytest.raises(InputError, match="30 whole numbers"):
        calibrate(obs, labels[:5])
    with pytest.raises(InputError, match="30 whole numbers"):
        calibrate(obs, ["first", "second"] * 15)
    with pytest.raises(InputError, match="all of these have the same label"):
        calibrate(obs, torch.zeros(30, dtype=torch.int64))
    with pytest.raises(InputError, match="known level, got UnknownNoise"):
        calibrate(Observations(obs.y, obs.A, sigma="learn"), labels)
    with pytest.raises(InputError, match="has 3 groups"):
        calibrate(obs, labels).apply(obs, torch.zeros(30, dtype=torch.int64))
