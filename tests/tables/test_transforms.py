"""Transforms of columns: exact inverses, and never a value that the column cannot hold."""

import numpy as np
import pandas as pd
import pytest

from diffem.tables.codes import ONE_HOT, Codebook
from diffem.tables.columns import describe
from diffem.tables.encoding import Encoding
from diffem.tables.quantiles import KNOTS, RankGaussian

random = np.random.default_rng(0)
COLUMNS = {
    "normal": random.standard_normal(500),
    "skewed": random.lognormal(sigma=2, size=500),
    "many values": random.standard_normal(5 * KNOTS),
    "counts": random.poisson(1.5, 500).astype(float),
    "mostly zero": np.where(random.random(500) < 0.8, 0, random.exponential(size=500)),
    "shares with atoms at both ends": np.clip(random.normal(0.5, 0.5, 500), 0, 1),
    "two values": (random.random(500) < 0.02).astype(float),
    "tiny": 1e-12 * random.standard_normal(50),
    "far from zero": 1e9 + random.standard_normal(50),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_numbers_come_back_from_their_ranks(name):
    x = COLUMNS[name]
    transform = RankGaussian(x)
    back = transform.decode(transform.encode(x))
    if len(np.unique(x)) <= KNOTS:
        assert np.array_equal(back, x)  # every value is a knot
    else:  # interpolated and interpolated back: rounding of both
        np.testing.assert_allclose(back, x, rtol=1e-9, atol=1e-9 * np.ptp(x))


@pytest.mark.parametrize("name", COLUMNS)
def test_ranks_keep_the_order_and_have_about_unit_variance(name):
    x = COLUMNS[name]
    transform = RankGaussian(x)
    assert (np.diff(transform.values) > 0).all()
    assert (np.diff(transform.z) > 0).all()
    z = transform.encode(x)
    assert abs(z.mean()) < 0.02  # values between knots are interpolated
    assert 0.05 < z.std() < 1.05  # a column that hardly varies is not blown up to 1


@pytest.mark.parametrize("name", COLUMNS)
def test_decoded_numbers_stay_in_the_observed_range(name):
    x = COLUMNS[name]
    decoded = RankGaussian(x).decode(np.array([-1e6, -8.0, 0.0, 8.0, 1e6]))
    assert x.min() <= decoded.min()
    assert decoded.max() <= x.max()


def test_the_interval_of_an_atom_decodes_to_its_value():
    transform = RankGaussian(np.repeat([0.0, 1.0, 5.0], [600, 300, 100]))
    z = np.linspace(-10, 10, 20_001)
    decoded = transform.decode(z)
    # nothing but atoms: a staircase, with a step between two of them
    assert set(decoded) == {0.0, 1.0, 5.0}
    assert (np.diff(decoded) >= 0).all()
    for value, place in zip(transform.values, transform.z, strict=True):
        assert np.array_equal(transform.decode(place + np.array([-0.2, 0.0, 0.2])), [value] * 3)


def test_values_between_atoms_are_possible_if_they_were_observed():
    transform = RankGaussian(COLUMNS["mostly zero"])
    decoded = transform.decode(np.linspace(-3, 3, 10_000))
    assert (decoded == 0).any()
    assert ((decoded > 0) & (decoded < 0.1)).any()
    assert (decoded >= 0).all()


def test_values_between_those_of_a_short_column_are_possible():
    x = COLUMNS["normal"][:50]
    decoded = RankGaussian(x).decode(np.linspace(-1, 1, 1001))
    # interpolated: each of these codes has its own value, instead of one of the 50
    assert len(np.unique(decoded)) == 1001


def test_missing_values_stay_missing_and_new_ones_lie_beyond_the_ends():
    transform = RankGaussian(np.arange(100.0))
    z = transform.encode(np.array([np.nan, -50.0, 0.0, 99.0, 1e6]))
    assert np.isnan(z[0])
    assert z[1] < z[2] < z[3] < z[4]
    assert z[4] <= z[3] + 2


@pytest.mark.parametrize("count", [2, 3, ONE_HOT, ONE_HOT + 1, 200])
def test_categories_come_back_from_their_code_words(count):
    codes = np.arange(count)
    book = Codebook(np.arange(1, count + 1))
    assert np.array_equal(book.decode(book.encode(codes)), codes)
    assert np.isnan(book.encode(np.array([-1]))).all()


@pytest.mark.parametrize("count", [2, 3, 17, 100])
def test_any_point_decodes_to_a_category_that_exists(count):
    book = Codebook(np.ones(count))
    points = 100 * np.random.default_rng(0).standard_normal((1000, book.words.shape[1]))
    assert set(book.decode(points)) <= set(range(count))


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "number": [0.5, 2.5, None, 1.25],
            "count": pd.array([3, None, 0, 7], dtype="Int64"),
            "flag": pd.array([True, None, False, True], dtype="boolean"),
            "grade": pd.Categorical(["low", "high", None, "low"], categories=["low", "high", "never seen"]),
            "word": ["a", "b", None, "c"],
            "same": [4.0, None, 4.0, 4.0],
        }
    )


def test_the_kinds_of_columns_are_found():
    table = frame()
    assert [describe(table[name]).kind for name in table] == [
        "numeric", "integer", "boolean", "categorical", "categorical", "integer",
    ]  # fmt: skip
    assert describe(table["count"], round_integers=False).kind == "integer"
    assert describe(table["same"], round_integers=False).kind == "numeric"
    assert describe(table["count"], "categorical").categories == (0, 3, 7)


def test_a_table_comes_back_from_its_matrix():
    table = pd.concat([frame(), frame()])  # shared values are atoms, which decode exactly from codes in float32
    encoding = Encoding(table)
    z = encoding.encode(table)
    assert z.shape == (8, encoding.size) == (8, 1 + 1 + 1 + 1 + 3)
    for k, column in enumerate(encoding.columns):
        numbers, observed = encoding.decode(k, np.nan_to_num(z)), table[column.name].notna().to_numpy()
        assert column.values(numbers)[observed].tolist() == table[column.name][observed].tolist()


def test_a_category_that_was_never_observed_counts_as_missing():
    encoding = Encoding(frame())
    other = frame().assign(word=["a", "zebra", "b", None])
    place = encoding.places[4]
    assert np.isnan(encoding.encode(other)[:, place]).all(1).tolist() == [False, True, False, True]
