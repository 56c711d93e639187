"""Observations from arrays, data frames, lists and data sets, with NaN for missing values."""

import io

import numpy as np
import pandas
import pytest
import torch
from torch.utils.data import Dataset

from diffem import InputError, Observations, linalg, metrics, operators

TABLE = np.array([[1.0, 2.0, np.nan], [4.0, np.nan, 6.0], [7.0, 8.0, 9.0], [np.nan, 11.0, 12.0]])


class Pairs(Dataset):
    """Samples with labels, as in torchvision's data sets; indices beyond the end do not fail."""

    def __init__(self, x):
        self.x = x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i % len(self.x)], i % 10


class Samples(Pairs):
    def __getitem__(self, i):
        return self.x[i % len(self.x)]


WAYS = {
    "NumPy": lambda y: y,
    "Fortran order": np.asfortranarray,
    "big-endian": lambda y: y.astype(">f8"),
    "reversed twice": lambda y: y[::-1].copy()[::-1],
    "masked": lambda y: np.ma.masked_array(np.nan_to_num(y, nan=-99.0), np.isnan(y)),
    "frame": lambda y: pandas.DataFrame(y, columns=list("abc")),
    "frame of nullable numbers": lambda y: pandas.DataFrame(y, columns=list("abc")).convert_dtypes(),
    "lists": lambda y: y.tolist(),
    "list of arrays": list,
    "list of tensors": lambda y: list(torch.from_numpy(y)),
    "list of series": lambda y: [pandas.Series(row) for row in y],
    "data set": lambda y: Samples(torch.from_numpy(y)),
    "data set with labels": lambda y: Pairs(y),
}


@pytest.mark.parametrize("way", WAYS)
def test_the_same_observations_from_every_kind_of_container(way):
    """NaN means "not measured": mask and measured values are those of a float64 tensor."""
    expected = Observations(torch.from_numpy(TABLE), operators.Mask(torch.from_numpy(~np.isnan(TABLE))), sigma=0.1)
    obs = Observations(WAYS[way](TABLE), sigma=0.1)
    assert obs.y.dtype == torch.float64
    assert torch.equal(obs.y, expected.y)
    assert isinstance(obs.A, operators.Mask)
    assert torch.equal(obs.measured, expected.measured)


def test_without_nan_everything_is_measured():
    obs = Observations(np.ones((4, 2, 2), dtype=np.float32), sigma=0.1)
    assert isinstance(obs.A, operators.Identity)
    assert obs.y.dtype == torch.float32


def test_infinite_values_are_not_treated_as_missing():
    with pytest.raises(InputError, match="non-finite measured values"):
        Observations(np.array([[1.0, np.inf], [np.nan, 1.0]]), sigma=0.1)


def test_nan_together_with_an_operator_is_an_error_that_explains_masks():
    y = torch.ones(2, 4, 4)
    y[1, 2, 3] = torch.nan
    blur = operators.Blur(torch.ones(3, 3) / 9)
    with pytest.raises(InputError, match=r"observation 1 .*Compose"):
        Observations(y, blur, sigma=0.1)
    obs = Observations(y, operators.Compose(operators.Mask(~y.isnan()), blur), sigma=0.1)
    assert obs.counts().tolist() == [16, 15]


def test_a_mask_of_complex_measurements_is_complex():
    y = torch.randn(3, 4, 6, dtype=torch.complex128)
    measured = torch.rand(3, 4, 6) < 0.5
    y[~measured] = torch.nan
    with pytest.raises(InputError, match=r"Fourier\(measured\).*measured\[\.\.\., None\]"):
        Observations(y, operators.Fourier(), sigma=0.1)
    composed = operators.Compose(operators.Mask(measured[..., None]), operators.Fourier())
    obs, expected = (Observations(y, A, sigma=0.1) for A in (composed, operators.Fourier(measured)))
    x = torch.randn(3, 4, 6, dtype=torch.float64)
    assert obs.A.complex_output
    assert torch.equal(obs.chi2(x), expected.chi2(x))
    hidden = metrics.hide(obs, 0.5)[1]
    assert torch.equal(hidden[..., 0], hidden[..., 1])  # the parts of a number are hidden together


def test_the_noise_of_an_entry_that_nothing_measures_may_be_nan():
    y = np.ones((4, 2, 3))
    y[:, 0, 1] = np.nan
    y[0, 1, 1] = np.nan
    sigma = np.full((2, 3), 0.1)
    sigma[0, 1] = np.nan
    variances = Observations(y, sigma=sigma).cov.diagonal((2, 3))
    assert torch.allclose(variances, torch.tensor(0.01, dtype=torch.float64))
    sigma[1, 1] = np.nan  # some observations measure this entry
    with pytest.raises(InputError, match="positive and finite"):
        Observations(y, sigma=sigma)


def test_labelled_noise_levels_follow_the_columns():
    frame = pandas.DataFrame(np.ones((4, 3)), columns=["a", "b", "c"])
    expected = Observations(frame, sigma=[0.1, 0.2, 0.3]).cov.diagonal((3,))
    levels = pandas.Series({"c": 0.3, "a": 0.1, "b": 0.2})
    for sigma in (levels, pandas.Series([0.1, 0.2, 0.3]), pandas.DataFrame([levels] * 4)):
        found = Observations(frame, sigma=sigma).cov.diagonal((3,))
        assert torch.equal(found, expected.expand_as(found))
    with pytest.raises(InputError, match=r"labels \['a', 'b', 'd'\], y has the columns \['a', 'b', 'c'\]"):
        Observations(frame, sigma=pandas.Series({"a": 0.1, "b": 0.2, "d": 0.3}))


def test_an_observation_has_at_least_one_value():
    with pytest.raises(InputError, match=r"at least one value, got y of shape \(5, 0\)"):
        Observations(np.zeros((5, 0)), sigma=0.1)


def archive(**arrays: np.ndarray) -> object:
    """The archive that np.load makes of an .npz file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    file.seek(0)
    return np.load(file)


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.arange(6, dtype=np.uint8), torch.float32),
        (np.arange(6, dtype=np.int64), torch.float32),
        (np.arange(6, dtype=np.int64) + 2**24, torch.float64),
        (np.arange(6, dtype=np.float16), torch.float32),
    ],
)
def test_whole_numbers_are_exact(array, dtype):
    obs = Observations(array.reshape(3, 2), sigma=1.0)
    assert obs.y.dtype == dtype
    assert obs.y.double().flatten().tolist() == array.tolist()


def test_parameters_of_operators_may_have_another_byte_order_or_be_read_only():
    """FITS files are big-endian, and `np.load(..., mmap_mode="r")` is read-only: neither changes the numbers."""
    matrix, x = np.random.default_rng(0).normal(size=(2, 3)), torch.randn(4, 3, dtype=torch.float64)
    fixed = matrix.copy()
    fixed.flags.writeable = False
    expected = operators.Dense(matrix)(x)
    for same in (matrix.astype(">f8"), fixed):
        assert torch.equal(operators.Dense(same)(x), expected)
    mask = np.isfinite(TABLE)
    for kind in (">i4", ">f4"):
        assert torch.equal(operators.Mask(mask.astype(kind)).measured(x), torch.from_numpy(mask))
    gain = np.arange(4.0)[:, None]
    A = operators.Function(lambda x, gain: gain * x, (3,), gain=gain.astype(">f8"))
    assert torch.equal(A(x), torch.from_numpy(gain) * x)
    obs = Observations(TABLE, sigma="learn", groups=np.array([0, 1, 1, 0], dtype=">i4"))
    assert obs.cov.groups.tolist() == [0, 1, 1, 0]


def test_masks_matrices_and_kernels_may_be_arrays():
    mask = np.isfinite(TABLE)
    assert torch.equal(Observations(TABLE, operators.Mask(mask), sigma=1.0).measured, torch.from_numpy(mask))
    matrix = np.random.default_rng(0).normal(size=(2, 3))
    assert torch.equal(operators.Dense(matrix)(torch.eye(3).double()).T, torch.from_numpy(matrix))
    kernel = np.full((1, 1), 2.0, dtype=np.float32)
    assert torch.allclose(operators.Blur(kernel)(torch.ones(1, 4, 4)), torch.full((1, 4, 4), 2.0))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Observations("obs.safetensors", sigma=1.0), "y must be a tensor, an array, a data frame.*got str"),
        (lambda: Observations({"y": TABLE}, sigma=1.0), "got dict; choose one of its entries"),
        (lambda: Observations(archive(y=TABLE), sigma=1.0), "got NpzFile; choose one of its entries"),
        (lambda: Observations(3.0, sigma=1.0), "at least one sample"),
        (lambda: Observations([], sigma=1.0), "empty list"),
        (lambda: Observations([np.ones(2), np.ones(3)], sigma=1.0), r"y\[0\] has \(2,\), y\[1\] has \(3,\)"),
        (lambda: Observations([np.ones(2), "x"], sigma=1.0), r"y\[1\] must be a tensor"),
        (lambda: Observations(np.isnan(TABLE), sigma=1.0), "booleans .pass a mask to operators.Mask"),
        (lambda: Observations(np.array([["a", "b"]]), sigma=1.0), "must hold numbers"),
        (lambda: Observations(TABLE.astype(np.longdouble), sigma=1.0), "must hold numbers"),
        (
            lambda: Observations(pandas.DataFrame({"age": [1, 2], "sex": ["f", "m"]}), sigma=1.0),
            "columns contain other values: sex",
        ),
        (lambda: Observations(np.ones(4), sigma=1.0), r"got shape \(4,\); single numbers have shape \(n, 1\)"),
        (lambda: Observations(np.ones((2, 2)) * 1j, sigma=1.0), "name the operator.*passed as two channels"),
        (lambda: Observations(np.ones((2, 2)) * 1j, operators.Identity(), sigma=1.0), "real numbers.*two channels"),
        (
            lambda: Observations(np.ones((5, 8, 8)), operators.Fourier(), sigma=1.0),
            r"Fourier measures complex numbers: y must be complex.*got torch.float64 of shape \(5, 8, 8\)",
        ),
        (lambda: Observations(TABLE, np.isfinite(TABLE), sigma=1.0), r"operator, got ndarray.*operators.Mask\(mask\)"),
        (
            lambda: Observations(Observations(TABLE, sigma=1.0), sigma=1.0),
            "y must be an array of measured values, got Observations",
        ),
        (lambda: Observations(TABLE, sigma="small"), "sigma must be a number, an array or 'learn', got"),
        (lambda: Observations(TABLE, sigma=1j), "sigma must be real"),
        (lambda: Observations(TABLE, sigma=[0.1, 0.1]), r"4 of them, got shape \(2,\)"),
        (lambda: Observations(TABLE, sigma=[0.1, 0.0, 0.1]), r"positive and finite, got \[0.0\]"),
        (lambda: Observations(TABLE, sigma=np.ones((1, 4, 3))), r"got shape \(1, 4, 3\)"),
        (lambda: Observations(np.ones((4, 3)), sigma=np.where(TABLE > 0, 1, np.nan)), "nan.*y must be NaN too"),
        (lambda: Observations(TABLE, cov=np.ones((4, 3))), "diffem.linalg covariance, got ndarray.*square root"),
        (
            lambda: Observations(np.ones((4, 8, 8), np.float32), operators.Blur(np.ones((3, 3)) / 9), sigma=0.1),
            r"float32, kernel of Blur is torch.float64.*\.astype",
        ),
        (lambda: operators.Blur(np.ones((3, 3), int)), "floating-point numbers.*got int64"),
    ],
)
def test_misuse_is_named(make, words):
    with pytest.raises(InputError, match=f"(?s){words}"):
        make()


# noise ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sigma", [[0.1, 0.2, 0.3], np.array([0.1, 0.2, 0.3]), pandas.Series([0.1, 0.2, 0.3]), [[0.1, 0.2, 0.3]]]
)
def test_a_standard_deviation_per_column(sigma):
    obs = Observations(TABLE, sigma=sigma)
    assert isinstance(obs.cov, linalg.Diagonal)
    assert torch.allclose(obs.cov.diagonal((3,)).sqrt(), torch.tensor([[0.1, 0.2, 0.3]]).double())
    x = torch.ones(4, 3).double()
    expected = ((TABLE - 1) / np.array([0.1, 0.2, 0.3])) ** 2
    assert np.allclose(obs.chi2(x), np.nanmean(expected, 1))


def test_noise_of_fewer_dimensions_is_broadcast():
    y = np.ones((5, 4, 3))
    rows = np.array([0.1, 0.2, 0.3, 0.4]).reshape(4, 1)
    assert torch.allclose(
        Observations(y, sigma=rows).cov.diagonal((4, 3)).sqrt()[0, :, 2], torch.from_numpy(rows[:, 0])
    )
    whole = np.random.default_rng(0).uniform(0.1, 1, size=y.shape)
    assert torch.allclose(Observations(y, sigma=whole).cov.diagonal((4, 3)).sqrt(), torch.from_numpy(whole))
    each = Observations(y, sigma=np.arange(1.0, 6.0))
    assert isinstance(each.cov, linalg.Isotropic)


def test_as_many_columns_as_observations():
    """A vector is one number per observation; a leading axis makes it one per column."""
    y, sigma = np.ones((3, 3)), np.array([1.0, 2.0, 3.0])
    assert Observations(y, sigma=sigma).cov.diagonal((3,))[:, 0].tolist() == [1, 4, 9]
    assert Observations(y, sigma=sigma[None]).cov.diagonal((3,))[0].tolist() == [1, 4, 9]


# functions ------------------------------------------------------------------------------------------------------------


def test_functions_take_numbers_and_arrays():
    def weighed(x, gain, weights):
        return gain * weights * x

    weights = np.random.default_rng(0).uniform(size=(4, 3)).astype(np.float32)
    A = operators.Function(weighed, (3,), gain=2, weights=weights)
    x = torch.randn(4, 3)
    assert torch.equal(A(x), 2 * torch.from_numpy(weights) * x)
    assert torch.equal(A[1:3](x[1:3]), A(x)[1:3])
    assert operators.check(A, (3,))
    assert A.config()["numbers"] == {"gain": 2}
    other = operators.Function(weighed, (3,), gain=3, weights=weights)
    assert Observations(x, A, 1.0).structure() != Observations(x, other, 1.0).structure()
    half = operators.Function(weighed, (3,), gain=torch.tensor(0.5), weights=weights)
    assert half.numbers == {"gain": 0.5}
    for bad in ("2", [1, 2], None):
        with pytest.raises(InputError, match="parameter gain must be a number, or a tensor"):
            operators.Function(weighed, (3,), gain=bad, weights=weights)
    with pytest.raises(InputError, match=r"x_shape is the shape of a sample.*got 3"):
        operators.Function(weighed, 3)


def test_functions_that_compute_in_another_dtype():
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    A = operators.Function(lambda x: weights * x, (3,))
    assert A(torch.ones(2, 3)).dtype == torch.float32
    assert A.adjoint(torch.ones(2, 3)).tolist() == [[1, 2, 3]] * 2
    matrix = torch.eye(3, dtype=torch.float64)
    with pytest.raises(InputError, match=r"A fails on y of shape \(2, 3\) and torch.float32.*\.to\(x\)"):
        Observations(torch.ones(2, 3), operators.Function(lambda x: x @ matrix, (3,)), sigma=1.0)
    assert Observations(torch.ones(2, 3), operators.Function(lambda x: x @ matrix.to(x), (3,)), sigma=1.0)
