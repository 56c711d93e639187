"""Structural similarity against another implementation and against a value computed by hand."""

import pytest
import torch

from diffem.metrics.images import ssim


@pytest.mark.parametrize("channels", [1, 3])
def test_it_agrees_with_torchmetrics(channels):
    functional = pytest.importorskip("torchmetrics.functional.image")
    truth = torch.rand(4, channels, 40, 33)
    x = (truth + 0.2 * torch.randn_like(truth)).clamp(0, 1)
    expected = functional.structural_similarity_index_measure(x, truth, data_range=1.0, reduction="none")
    # float32 variances are computed as differences of squares
    assert torch.allclose(ssim(x, truth), expected, atol=1e-5)


def test_it_agrees_with_values_computed_by_hand():
    truth = torch.rand(3, 1, 16, 16, dtype=torch.float64)
    assert torch.allclose(ssim(truth, truth), torch.ones(3, dtype=torch.float64))
    flat = torch.full((1, 1, 16, 16), 0.5, dtype=torch.float64)  # no variance, so only the luminance term remains
    assert float(ssim(flat, 0.5 * flat)) == pytest.approx((2 * 0.125 + 1e-4) / (0.25 + 0.0625 + 1e-4))
    assert torch.allclose(ssim(4 * truth, 4 * truth.flip(0), 4.0), ssim(truth, truth.flip(0)))


def test_bad_input_is_rejected():
    with pytest.raises(ValueError, match=r"at least 11×11, got \(1, 1, 8, 8\)"):
        ssim(torch.zeros(1, 1, 8, 8), torch.zeros(1, 1, 8, 8))
