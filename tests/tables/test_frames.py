"""Frames as data scientists have them: types of columns, categories and types that differ at transform, refusals."""

import re

import numpy as np
import pandas as pd
import pytest

from diffem.core.errors import InputError
from diffem.tables.columns import Column, describe
from diffem.tables.frames import as_frame, filled
from diffem.tables.quantiles import RankGaussian

GAPS = np.array([False, True, False])


@pytest.mark.parametrize(
    "dtype", ["float16", "float32", "float64", "Float32", "Float64", "Int8", "UInt8", "Int64", "boolean", "object"]
)
def test_a_filled_column_keeps_its_type_and_its_values(dtype):
    column = pd.Series([1, None, 0], dtype=dtype, index=[7, 7, 7])
    kind = {"boolean": "boolean", "float32": "numeric"}.get(dtype, "integer")
    values = Column("c", kind, (False, True) if kind == "boolean" else ()).values(np.array([1.0]))
    found = filled(column, GAPS, values)
    assert found.dtype == column.dtype
    assert found.tolist() == [1, 1, 0]
    assert found.index.equals(column.index)
    assert column.isna().sum() == 1  # the one given is as before


def test_single_precision_holds_fractions_within_the_observed_range():
    column = pd.Series([0.1, None, 0.7], dtype="float32")
    found = filled(column, GAPS, np.array([np.float64(column.max())]))
    assert found.dtype == np.float32
    assert found[1] == column.max()


def test_whole_numbers_beyond_double_precision_stay_integers():
    found = filled(pd.Series([2**62, None, 5], dtype=object), GAPS, Column("c", "integer").values(np.array([2.0**62])))
    assert found.tolist() == [2**62, 2**62, 5]
    assert all(isinstance(value, int) for value in found)


def test_a_column_that_cannot_hold_the_imputed_words_becomes_one_that_can():
    found = filled(pd.Series([np.nan] * 3), np.ones(3, dtype=bool), np.array(["x", "y", "x"], dtype=object))
    assert found.tolist() == ["x", "y", "x"]
    given = pd.Series(pd.Categorical(["w", None, "x"], categories=["w", "x"]))
    found = filled(given, GAPS, np.array(["y"], dtype=object))
    assert found.tolist() == ["w", "y", "x"]
    assert found.cat.categories.tolist() == ["w", "x", "y"]


@pytest.mark.parametrize("scale", [1e-310, 1e-300, 1.0, 1e290])
def test_numbers_of_any_magnitude_are_encoded_in_the_same_way(scale):
    x = np.random.default_rng(0).exponential(size=200)
    plain, scaled = RankGaussian(x), RankGaussian(x * scale)
    # subnormal numbers have fewer digits
    np.testing.assert_allclose(scaled.encode(x * scale), plain.encode(x), rtol=1e-9 if scale > 1e-305 else 1e-3)
    assert np.array_equal(scaled.decode(scaled.z), scaled.values)


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pd.Series([1.0, np.inf], dtype=object), "holds 1 infinite"),
        (pd.Series([1.0, 1e301]), "beyond 1e+300"),
        (pd.Series(pd.arrays.SparseArray([0.0, np.nan])), "'c' is sparse: convert it"),
        (pd.Series([1j, 2.0]), "complex"),
    ],
)
def test_columns_that_no_table_can_have_are_refused_by_name(column, words):
    with pytest.raises(InputError) as error:
        as_frame(pd.DataFrame({"c": column}))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (pd.date_range("2026-01-01", periods=3), "pd.Timedelta(days=1)"),
        (pd.date_range("2026-01-01", periods=3, tz="UTC"), "pd.Timedelta(days=1)"),
        (pd.to_timedelta([1, 2, 3], unit="h"), "pd.Timedelta(days=1)"),
        (pd.interval_range(0, 3), "interval"),
    ],
)
def test_dates_are_refused_with_what_to_do(values, words):
    with pytest.raises(InputError, match="'c' holds values of type") as error:
        describe(pd.Series(values, name="c"))
    assert words in str(error.value)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["1,5", "2,5", "3"], "'1,5', '2,5'"),
        (["1,234.5", "-7"], "'1,234.5'"),
        (["3", "?", "4"], "'?'"),
        (["3", " ", "4.5", "--"], "'', '--'"),
    ],
)
def test_numbers_written_with_commas_or_marks_of_gaps_are_no_categories(values, words):
    column = pd.Series(values, name="a", dtype=object)
    with pytest.raises(InputError, match="column 'a' seems to hold numbers, but also " + re.escape(words)):
        describe(column)
    assert describe(column, "categorical").kind == "categorical"


@pytest.mark.parametrize("values", [["1", "2", "3+"], ["+", "-"], ["1", "2"], ["1, 2", "a"]])
def test_strings_with_digits_or_signs_may_be_categories(values):
    assert describe(pd.Series(values, name="a", dtype=object)).kind == "categorical"


def test_masked_values_are_refused_instead_of_being_taken_for_observed_ones():
    with pytest.raises(InputError, match="masked values"):
        as_frame(np.ma.array([[1.0, 2.0], [3.0, 0.0]], mask=[[False, False], [False, True]]))
    assert as_frame(np.ma.array([[1.0, 2.0]], mask=False)).to_numpy().tolist() == [[1.0, 2.0]]
