"""Bad input to operators: the message contains what was given and what is needed."""

import numpy as np
import pytest
import torch

from diffem import operators


def raises(*words):
    return pytest.raises(ValueError, match="(?s)" + ".*".join(words))


def test_batch_of_another_length():
    A = operators.Blur(torch.rand(3, 3, 3))
    with raises("3 observations", "2 samples"):
        A(torch.randn(2, 8, 8))


def test_dtype_mismatch_names_both():
    with raises("float64", "float32"):
        operators.Dense(torch.randn(2, 3))(torch.randn(1, 3, dtype=torch.float64))


def test_mask_of_another_shape():
    with raises(r"\(3, 3\)", r"\(2, 4, 4\)"):
        operators.Mask(torch.ones(3, 3, dtype=torch.bool))(torch.randn(2, 4, 4))
    with raises("mask", "axes"):
        operators.Mask(torch.ones(2, 2, 2, 2, 2, dtype=torch.bool))(torch.randn(2, 2))


def test_masks_of_columns_and_maps_in_place_of_masks():
    with raises(r"\(n, 1, 10\), such as mask\[:, None\]"):
        operators.Fourier(torch.ones(5, 10))(torch.zeros(5, 8, 10))
    with raises("NumPy array of booleans, got an array of complex64"):
        operators.Fourier(np.ones((4, 8, 10), np.complex64))


def test_mask_with_other_values_than_zero_and_one():
    with raises("0 and 1"):
        operators.Mask(torch.tensor([0.5, 1.0]))


def test_dense_on_another_shape():
    with raises(r"\(12,\)", r"\(3, 4\)", "event_shape"):
        operators.Dense(torch.randn(5, 12))(torch.randn(2, 3, 4))
    with raises(r"\(5,\)", r"\(2, 6\)"):
        operators.Dense(torch.randn(5, 12)).adjoint(torch.randn(2, 6))


def test_sizes_that_do_not_divide():
    with raises("3", "8×8"):
        operators.Downsample(3)(torch.randn(1, 8, 8))


def test_complex_and_integer_data():
    with raises("complex", "view_as_real"):
        operators.Identity()(torch.randn(2, 3, dtype=torch.complex64))
    with raises("floating point", "int64"):
        operators.Identity()(torch.ones(2, 3, dtype=torch.int64))


def test_channels_that_are_not_two():
    with raises(r"\(n, ..., 2, H, W\)", r"\(1, 3, 8, 8\)"):
        operators.Fourier(complex=True, channels=True)(torch.randn(1, 3, 8, 8))
    with raises("needs complex=True"):
        operators.Fourier(channels=True)


def test_an_empty_batch_is_rejected():
    with raises("at least one sample", r"\(0, 3\)"):
        operators.Identity()(torch.randn(0, 3))


def test_kernel_larger_than_the_image():
    with raises("9×9", "8×8"):
        operators.Blur(torch.rand(9, 9))(torch.randn(1, 8, 8))


def test_the_kernel_of_a_signal():
    with raises(r"2 axes, got shape \(3,\)", r"kernel of shape \(1, 3\) and y of shape \(n, 1, length\)"):
        operators.Blur(torch.ones(3))
    with raises("at least one entry", r"\(0, 3\)"):
        operators.Blur(torch.ones(0, 3))
    assert operators.Blur(torch.ones(1, 3))(torch.eye(5)[2:3, None]).round().tolist() == [[[0, 1, 1, 1, 0]]]


def test_crop_outside_the_image():
    with raises("top", r"\[0, 2\]"):
        operators.Crop((2, 2), (4, 4), top=3)


def test_sizes_that_are_not_pairs():
    with raises(r"Crop: size is \(height, width\), such as \(8, 8\), got 8"):
        operators.Crop(8, (12, 12))
    with raises("size is", r"got \(2.5, 2\)"):
        operators.Crop((2.5, 2), (4, 4))
    with raises(r"Crop: image is \(height, width\)", r"got \(3, 12, 12\)"):
        operators.Crop((8, 8), (3, 12, 12))
    with raises(r"x_shape is the shape of a sample, such as \(8, 8\), got 8"):
        operators.check(operators.Identity(), 8)


def test_measurements_that_are_not_stacked():
    A = operators.Stack(operators.Identity(), operators.Identity())
    with raises(r"Stack of 2 operators needs y of shape \(n, 2, \*measurement\), got \(5, 8\)"):
        A.adjoint(torch.ones(5, 8))


def test_stack_that_cannot_be_split():
    with raises("different shapes", "x_shape"):
        operators.Stack(operators.Identity(), operators.Downsample(2))(torch.randn(1, 4, 4))


def test_parts_for_different_numbers_of_observations():
    with raises("different numbers"):
        operators.Compose(operators.Blur(torch.rand(2, 3, 3)), operators.Blur(torch.rand(3, 3, 3)))


def test_unknown_names_are_rejected():
    with raises("circular, reflect, zero", "mirror"):
        operators.Blur(torch.rand(3, 3), "mirror")
    with raises("bicubic, mean", "nearest"):
        operators.Downsample(2, "nearest")


class TestCheck:
    def test_a_nonlinear_callable_is_rejected(self):
        with pytest.raises(operators.OperatorError, match="FAILED linearity") as caught:
            operators.check(lambda x: x**2, (4,))
        assert not caught.value.verdict.ok

    def test_an_affine_callable_is_rejected(self):
        with pytest.raises(operators.OperatorError, match="FAILED zero"):
            operators.check(lambda x: x + 1, (4,))

    def test_a_wrong_adjoint_is_rejected(self):
        class Wrong(operators.Identity):
            def _adjoint(self, y):
                return 2 * y

        with pytest.raises(operators.OperatorError, match="FAILED adjoint"):
            operators.check(Wrong(), (4,))

    def test_samples_that_influence_each_other(self):
        with pytest.raises(operators.OperatorError, match="FAILED batch independence"):
            operators.check(lambda x: x + x.mean(0, keepdim=True), (4,))

    def test_a_linear_callable_is_usable(self):
        assert operators.check(lambda x: x.cumsum(-1)[:, ::2], (6,))
