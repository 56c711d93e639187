"""Reconstructions of slices: with a Gaussian prior, every measure has an exact expectation."""

import numpy as np
import pytest
import torch

from diffem import priors
from diffem.linalg import LowRank
from diffem.mri.kspace import Acquisition, operator, put_columns
from diffem.mri.reconstruction import centre_window, intensity, problem_like, reconstruct, spread
from diffem.observations.observations import Observations
from diffem.observations.problem import Problem
from diffem.report.export import to_volume, write_nifti
from diffem.runs.recipe import load_recipe

RECIPE = load_recipe({"name": "x", "data": {"source": "mri_images"}, "laps": 1, "train": {"steps": 1}})


def problem(channels, n=40, accel=3):
    """True images drawn from the prior, so that the posterior is calibrated exactly."""
    factor = torch.randn(6, channels, 12, 16, generator=torch.Generator().manual_seed(0)) / 4
    prior = priors.GaussianPrior(torch.full((channels, 12, 16), -0.5), LowRank(factor, 0.02))
    x = prior.exact_sample(torch.randn(n, channels, 12, 16, generator=torch.Generator().manual_seed(1)))
    columns, masks = Acquisition(accel, 0.1, 0).measure(x, torch.arange(n))
    obs = Observations(put_columns(columns, masks), operator(masks, None, channels == 2), sigma=0.1)
    return prior, obs, x


@pytest.mark.parametrize("channels", [1, 2])
def test_measures_of_exact_posterior_draws(channels):
    prior, obs, x = problem(channels)
    k = 4
    part = reconstruct("R = 3", prior, obs, RECIPE, draws=k, truth=x)
    row = part.measures()
    # the mean of k draws has variance V(1 + 1/k); 40 slices of 192 or 384 correlated pixels leave a few per cent
    assert row["error_to_std"] == pytest.approx((1 + 1 / k) ** 0.5, rel=0.05)
    # exact for any number of draws
    assert row["coverage90"] == pytest.approx(0.9, abs=0.02)
    # (draw, y) is distributed as (truth, y), so the residual of a draw is distributed as the noise
    assert row["chi2"] == pytest.approx(1, abs=0.03)
    assert torch.allclose(part.gaussian, prior.posterior_mean(obs), atol=1e-4)
    assert torch.allclose(part.zero_filled, obs.A.adjoint(obs.y))
    assert row["psnr_gaussian"] > row["psnr_mean"] > row["psnr_draw"]  # the posterior mean has the least squared error


def test_draws_do_not_depend_on_the_batch():
    _, obs, x = problem(1, n=5)
    network = priors.MixturePrior(torch.ones(2), x[:2], torch.tensor([0.5, 0.5]))
    a, b = (reconstruct("x", network, obs, RECIPE, draws=2, steps=3, batch=size).draws for size in (10, 3))
    assert torch.allclose(a, b, atol=1e-5)


def test_intensity_lies_between_0_and_1():
    assert intensity(torch.tensor([-2.0, 2.0]).reshape(2, 1, 1, 1)).flatten().tolist() == [0, 1]
    assert intensity(torch.tensor([1.2, -1.6]).reshape(1, 2, 1, 1)).item() == pytest.approx(1)


def test_spread_takes_slices_evenly():
    _, obs, x = problem(1, n=9)
    some = spread(Problem(obs, x, "words"), 3)
    assert torch.equal(some.reference, x[[0, 3, 6]])
    assert torch.equal(some.obs.y, obs.y[[0, 3, 6]])
    assert len(spread(Problem(obs, x), 100).obs) == 9


def test_the_centre_window_is_a_measurement():
    x = torch.randn(6, 1, 12, 16)
    obs = centre_window(x, 8, 0.01, 0)
    assert obs.y.shape == (6, 1, 8, 8)
    assert float((obs.y - x[:, :, 2:10, 4:12]).std()) == pytest.approx(0.01, rel=0.15)  # 384 values: 3.6 %
    prior, _, _ = problem(1, n=1)
    part = reconstruct("crop", prior, obs, RECIPE, draws=2, truth=x)
    assert (part.draws - x)[..., 2:10, 4:12].abs().max() < 0.06


def test_other_sources_have_no_acceleration():
    with pytest.raises(ValueError, match=r"accelerations need the data source.*'digits'"):
        problem_like(load_recipe("digits"), {"accel": 4})


class TestVolumes:
    def test_order_of_axes_and_scale(self):
        x = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 1, 4, 5)
        volume = to_volume(x)
        assert volume.shape == (5, 4, 3, 2)
        assert volume[1, 2, 0, 1] == (float(x[1, 0, 0, 2, 1]) + 2) / 4
        assert to_volume(x[0])[1, 2, 0] == (float(x[0, 0, 0, 2, 1]) + 2) / 4
        z = torch.randn(3, 2, 4, 5)
        assert to_volume(z)[1, 2, 0] == np.complex64((z[0, 0, 2, 1] + 1j * z[0, 1, 2, 1]).item() / 2)
        with pytest.raises(ValueError, match=r"image slices .* got samples of shape \(3, 5\)"):
            to_volume(torch.zeros(3, 5))

    def test_the_affine_puts_the_centre_at_the_origin(self, tmp_path):
        nibabel = pytest.importorskip("nibabel")
        write_nifti(tmp_path / "v.nii", to_volume(torch.zeros(3, 1, 4, 5)), (0.5, 0.5, 3.0))
        image = nibabel.load(tmp_path / "v.nii")
        assert image.shape == (5, 4, 3)
        assert image.header.get_zooms() == (0.5, 0.5, 3.0)
        assert np.allclose(image.affine @ [2, 1.5, 1, 1], [0, 0, 0, 1])
