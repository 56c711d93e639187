"""Values of the operators, against other implementations or computed by hand."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from diffem import Observations, operators


def test_bicubic_is_torchs_antialiased_filter():
    x = torch.randn(2, 3, 24, 32, dtype=torch.float64)
    expected = functional.interpolate(x, size=(6, 8), mode="bicubic", antialias=True, align_corners=False)
    assert torch.allclose(operators.Downsample(4)(x), expected, atol=1e-13)


def test_block_mean_is_average_pooling():
    x = torch.randn(2, 3, 12, 8, dtype=torch.float64)
    assert torch.allclose(operators.Downsample(4, "mean")(x), functional.avg_pool2d(x, 4), atol=1e-14)


@pytest.mark.parametrize(("boundary", "mode"), [("circular", "wrap"), ("reflect", "mirror"), ("zero", "constant")])
@pytest.mark.parametrize("shape", [(3, 3), (4, 5), (5, 2)])
def test_blur_is_scipys_convolution(boundary, mode, shape):
    from scipy.ndimage import convolve

    x, kernel = np.random.default_rng(0).normal(size=(7, 9)), np.random.default_rng(1).normal(size=shape)
    expected = convolve(x, kernel, mode=mode)
    got = operators.Blur(torch.from_numpy(kernel), boundary)(torch.from_numpy(x)[None])[0]
    assert np.allclose(got.numpy(), expected, atol=1e-12)


def test_a_kernel_larger_than_half_the_image_still_matches_dense_convolution():
    x, kernel = torch.randn(1, 8, 8, dtype=torch.float64), torch.randn(7, 7, dtype=torch.float64)
    expected = functional.conv2d(x[None], kernel.flip(0, 1)[None, None], padding=3)[0]
    assert torch.allclose(operators.Blur(kernel, "zero")(x), expected, atol=1e-12)


def test_fourier_is_orthonormal_and_centred():
    x = torch.zeros(1, 6, 8, dtype=torch.float64)
    x[0, 3, 4] = 1.0  # a point at the image centre has a flat, real spectrum
    y = operators.Fourier()(x)
    assert torch.allclose(y[..., 0], torch.full((1, 6, 8), 1 / np.sqrt(48), dtype=torch.float64))
    assert y[..., 1].abs().max() < 1e-15
    constant = operators.Fourier()(torch.ones(1, 6, 8, dtype=torch.float64))[..., 0]
    assert constant[0, 3, 4] == pytest.approx(np.sqrt(48))  # a constant has only the zero frequency, in the middle
    z = torch.randn(3, 6, 8, 2, dtype=torch.float64)
    assert torch.allclose(operators.Fourier(complex=True)(z).norm(), z.norm())


def test_two_coils_multiply_the_image_by_their_maps():
    maps = torch.randn(2, 6, 8, dtype=torch.complex128)
    x = torch.randn(1, 6, 8, 2, dtype=torch.float64)
    y = operators.Fourier(coils=maps, complex=True)(x)
    for c in range(2):
        seen = torch.view_as_real(maps[c] * torch.view_as_complex(x[0]))[None]
        assert torch.allclose(y[:, c], operators.Fourier(complex=True)(seen))


def test_two_channels_are_the_real_and_imaginary_part():
    mask, maps = torch.rand(3, 1, 8) < 0.5, torch.randn(2, 6, 8, dtype=torch.complex128)
    x = torch.randn(3, 6, 8, 2, dtype=torch.float64)
    last, first = (operators.Fourier(mask, maps, complex=True, channels=c) for c in (False, True))
    assert torch.equal(first(x.movedim(-1, 1)), last(x))
    y = torch.randn(3, 2, 6, 8, 2, dtype=torch.float64)
    assert torch.equal(first.adjoint(y), last.adjoint(y).movedim(-1, 1))


def test_a_shared_mask_whose_first_axis_could_be_observations():
    mask = torch.rand(4, 4) < 0.5
    x = torch.randn(4, 4, 4)
    A = operators.Mask(mask)
    assert torch.equal(A[1:3](x[1:3]), x[1:3] * mask)
    per_observation = operators.Mask(mask)[1:3]
    assert torch.equal(per_observation(torch.ones(2, 4)), mask[1:3].float())


def test_stack_and_compose_take_nan_where_a_part_does_not_measure():
    mask = torch.tensor([[1, 0, 1, 0]], dtype=torch.bool)
    A = operators.Compose(operators.Crop((1, 2), (1, 4), left=0), operators.Mask(mask))
    assert A.measured(torch.zeros(1, 1, 2)).tolist() == [[[True, False]]]
    obs = Observations(torch.tensor([[[1.0, torch.nan]]]), A, sigma=1.0)
    assert obs.counts().tolist() == [1]


def test_what_a_composition_measures_does_not_depend_on_brackets():
    crop, mask = operators.Crop((2, 4), (4, 6)), operators.Mask(torch.rand(3, 4, 6) < 0.5)
    mean, other = operators.Downsample(2, "mean"), operators.Mask(torch.rand(3, 2, 4) < 0.7)
    flat = operators.Compose(mean, other, crop, mask)
    y = flat(torch.randn(3, 4, 6))
    assert not flat.measured(y).all()
    for A in (mean @ other @ crop @ mask, mean @ (other @ (crop @ mask)), (mean @ other) @ (crop @ mask)):
        assert torch.equal(A.measured(y), flat.measured(y))


@pytest.mark.parametrize("x_shape", [None, (4, 6)])
def test_a_stack_measures_what_an_earlier_mask_leaves_to_its_parts(x_shape):
    mask = torch.rand(3, 4, 6) < 0.5
    parts = operators.Crop((2, 4), (4, 6), 0, 0), operators.Crop((2, 4), (4, 6), 2, 2)
    A = operators.Compose(operators.Stack(*parts, x_shape=x_shape), operators.Mask(mask))
    y = A(torch.randn(3, 4, 6))
    expected = torch.stack([mask[:, :2, :4], mask[:, 2:, 2:]], 1).reshape(y.shape)
    assert torch.equal(A.measured(y), expected)
    assert torch.equal(Observations(y, A, sigma=1.0).counts(), expected.flatten(1).sum(1))


def test_a_function_with_float32_constants_is_checked_in_float32():
    """Errors of rounding are not errors of the function; those of an affine function are larger."""
    psf = torch.rand(3, 3)
    A = operators.Function(lambda x: torch.nn.functional.conv2d(x[:, None], psf[None, None])[:, 0], (6, 6))
    assert operators.check(A, (6, 6)).findings[0].tolerance == 1e-4
    with pytest.raises(operators.OperatorError, match="allowed 1e-10"):
        operators.check(A, (6, 6), dtype=torch.float64)
    with pytest.raises(operators.OperatorError, match="A\\(0\\) = 0"):
        operators.check(lambda x: A(x) + 0.01, (6, 6))


def test_a_function_with_float32_constants_accepts_float64():
    """Convolutions do not mix dtypes, and the library evaluates residuals in float64."""
    psf = torch.rand(3, 3)
    A = operators.Function(lambda x: torch.nn.functional.conv2d(x[:, None], psf[None, None], padding=1)[:, 0], (6, 6))
    x = torch.rand(2, 6, 6, dtype=torch.float64)
    y = A(x)
    assert y.dtype == torch.float64
    # float32 arithmetic: nine products of numbers below 1
    assert torch.allclose(y, A(x.float()).double(), atol=1e-5)
    assert A.adjoint(y).dtype == torch.float64
    with pytest.raises(RuntimeError, match="size"):  # other errors of the function are not hidden
        operators.Function(lambda x: x + torch.rand(5), (6, 6))(x)
