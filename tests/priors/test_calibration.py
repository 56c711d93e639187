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
    with pytest.raises(InputError, match=r"has the groups \[0, 1, 2\], not \[7\]"):
        calibrate(obs, labels).apply(obs, torch.full((30,), 7))
    empty = Observations(obs.y, operators.Mask((labels != 2)[:, None].expand(obs.y.shape)), sigma=0.1)
    with pytest.raises(InputError, match=r"too few in the groups \[3\]"):
        calibrate(empty, torch.where(labels == 2, 3, labels))


def test_the_error_of_a_gain_does_not_depend_on_which_group_is_the_reference():
    """log g of B relative to A is minus that of A relative to B. With 20 and 200 observations A has most of it."""
    generator = torch.Generator().manual_seed(3)
    x = 1 + torch.randn(220, 2, generator=generator, dtype=torch.float64)
    large = torch.arange(220) >= 20
    y = torch.where(large[:, None], 1.5, 1.0) * x + 0.1 * torch.randn(220, 2, generator=generator, dtype=torch.float64)
    obs = Observations(y, operators.Identity(), sigma=0.1)
    one, other = calibrate(obs, large.long()), calibrate(obs, (~large).long())
    assert float(one.gain[1] * other.gain[1]) == pytest.approx(1, rel=1e-3)
    assert float(one.gain_error[1]) == pytest.approx(float(other.gain_error[1]), rel=0.05)
    # of about 1/√(2·40) for the standard deviation of 40 numbers, and less since the mean tells about the gain too
    assert 0.05 < float(one.gain_error[1]) < 0.12


def test_a_part_of_the_groups_is_corrected_by_label():
    obs, labels, _ = instrument(60)
    found = calibrate(obs, 5 + labels)
    whole, last = found.apply(obs, 5 + labels), labels == 2
    torch.testing.assert_close(found.apply(obs[last], 5 + labels[last]).y, whole.y[last])
