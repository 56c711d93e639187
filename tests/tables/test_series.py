"""Series: windows and back, irregular times, and the imputer's interface."""

import numpy as np
import pandas as pd
import pytest
import torch

from diffem.core.errors import InputError, RunWarning
from diffem.nn.conv1d import Conv1d
from diffem.tables import SeriesImputer
from diffem.tables.windows import Grid, clock_of, spacing, times_of

TINY = {
    "gaussian.rounds": 2,
    "network": {"kind": "conv1d", "hidden": [8], "embedding": 4},
    "train.batch": 16,
    "e_step.steps": 2,
    "watch.held_out": 0,
}


def tiny(**options) -> SeriesImputer:
    defaults = {"window": 8, "laps": 1, "steps": 2, "draws": 3, "sampling_steps": 2, "random_state": 0, "recipe": TINY}
    return SeriesImputer(**(defaults | options))


def series(rows: int = 50, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    values = np.sin(np.arange(rows)[:, None] / [3.0, 5.0]) + 0.1 * random.standard_normal((rows, 2))
    frame = pd.DataFrame(values, pd.date_range("2026-01-01", periods=rows, freq="h"), ["wind", "sun"])
    return frame.mask(random.random(frame.shape) < 0.2)


@pytest.mark.parametrize(("points", "length", "stride"), [(50, 8, 4), (50, 8, 3), (8, 8, 4), (5, 8, 4)])
def test_windows_join_to_the_series_they_were_cut_from(points, length, stride):
    z = np.random.default_rng(0).standard_normal((points, 2)).astype(np.float32)
    grid = Grid.of(z, np.arange(points, dtype=float), 1.0)
    windows, firsts = grid.windows(length, stride)
    assert windows.shape[1:] == (2, length)
    drawn = np.stack([windows, 2 * windows])  # as draws have a leading axis
    joined = grid.joined(drawn, firsts)
    assert np.array_equal(joined[0], z)
    assert np.array_equal(joined[1], 2 * z)


def test_irregular_times_lie_on_the_nearest_points():
    times = np.array([0.0, 1.1, 1.9, 4.0, 4.2])
    z = np.array([[1.0], [2.0], [3.0], [4.0], [6.0]])
    grid = Grid.of(z, times, 1.0)
    assert grid.places.tolist() == [0, 1, 2, 4, 4]
    np.testing.assert_array_equal(grid.values[0], [1, 2, 3, np.nan, 5])  # two rows at one point: their mean


def test_gaps_are_filled_and_values_kept():
    gaps = series()
    imputer = tiny().fit(gaps)
    filled = imputer.transform(gaps)
    assert not filled.isna().any().any()
    assert filled.index.equals(gaps.index)
    pd.testing.assert_frame_equal(filled.where(gaps.notna()), gaps)
    tables = imputer.sample_posterior(gaps, 3)
    assert len(tables) == 3
    assert not tables[0].equals(tables[1])
    # times without a row are gaps of the same grid: the same values are imputed as if their rows were empty
    absent = gaps.index[[3, 4, 20]]
    empty = gaps.copy()
    empty.loc[absent] = np.nan
    pd.testing.assert_frame_equal(imputer.transform(gaps.drop(absent)), imputer.transform(empty).drop(absent))


def test_several_series_and_arrays_keep_their_form():
    """A list is imputed series by series, and an array as the frame with the same numbers and times."""
    many = [series(30, seed) for seed in range(3)]
    imputer = tiny().fit(many)
    filled = imputer.transform(many)
    for given, one in zip(many, filled, strict=True):
        pd.testing.assert_frame_equal(one, imputer.transform(given))
        pd.testing.assert_frame_equal(one.where(given.notna()), given)
    frame = series().reset_index(drop=True).set_axis(["x0", "x1"], axis=1)
    array = frame.to_numpy()
    from_array = tiny().fit(array).transform(array)
    assert isinstance(from_array, np.ndarray)
    np.testing.assert_array_equal(from_array, tiny().fit(frame).transform(frame).to_numpy())


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (series().iloc[::-1], "must be finite and increase"),
        (series().set_axis([f"row {i}" for i in range(50)]), "must hold its times"),
        (series().assign(wind=1.0), "['wind'] have a single value"),
        (series().assign(wind=np.nan), "'wind' has no observed value"),
        (series().assign(wind="calm"), "not all of its values are numbers"),
        (series().assign(wind=series().index), "'wind' holds values of type datetime64"),
        (series().set_axis(series().index.where(np.arange(50) > 0)), "must be finite and increase"),
        ([series(), series()[["sun", "wind"]]], "the same channels"),
        ([], "at least one"),
    ],
)
def test_bad_series_are_refused(X, words):
    with pytest.raises(InputError) as error:
        tiny().fit(X)
    assert words in str(error.value)


@pytest.mark.parametrize("every", [0, -1.0, np.inf, "often", [1]])
def test_a_bad_spacing_is_refused(every):
    with pytest.raises(InputError, match="every must be a positive number or a duration"):
        tiny(every=every).fit(series())


def test_a_spacing_that_is_too_coarse_causes_a_warning():
    hourly = series()
    step = spacing(None, [times_of(hourly)], clock_of(hourly))
    with pytest.warns(RunWarning, match=r"times of the series fall on \d+ points.*smaller every"):
        tiny(every=3 * step).fit(hourly)


def test_a_spacing_is_a_duration_or_a_number():
    for every in ("30min", pd.Timedelta(minutes=30), 30 * 60e9):
        assert spacing(every, []) == 30 * 60e9
    assert spacing(None, [np.array([0.0, 1.0, 2.0, 9.0])]) == 1.0


def test_times_of_different_kinds_are_refused():
    """Nanoseconds of dates and plain numbers are no common scale: all times would lie at one point of the grid."""
    dated, numbered = series(), series().reset_index(drop=True)
    with pytest.raises(InputError, match="are numbers, those of the others are dates"):
        tiny().fit([dated, numbered])
    with pytest.raises(InputError, match="are numbers, those of the others are dates"):
        tiny().fit(dated).transform(numbered)
    with pytest.raises(InputError, match="every must be a number, as the times of the series are, got '1h'"):
        tiny(every="1h").fit(numbered)


def test_a_nested_list_is_one_series():
    numbers = series().to_numpy()
    imputer = tiny().fit(numbers)
    np.testing.assert_array_equal(imputer.transform(numbers.tolist()), imputer.transform(numbers))
    np.testing.assert_array_equal(imputer.sample_posterior(numbers.tolist(), 2), imputer.sample_posterior(numbers, 2))


def test_every_point_is_taken_from_the_window_whose_middle_is_nearest():
    grid = Grid(np.arange(1000, dtype=np.float32)[None], np.arange(1000))
    windows, firsts = grid.windows(10, 3)
    numbered = np.broadcast_to(np.arange(len(firsts))[:, None, None], windows.shape)
    middles = firsts + 4.5
    assert np.array_equal(grid.joined(windows, firsts)[:, 0], np.arange(1000))
    nearest = np.abs(np.arange(1000)[:, None] - middles).argmin(1)
    assert np.array_equal(grid.joined(numbered, firsts)[:, 0], nearest)


def test_channels_keep_single_precision_and_integers_become_floats():
    given = series().astype(np.float32).assign(count=pd.array([1, None, 3, 4, 5] * 10, dtype="Int64"))
    found = tiny().fit(given).transform(given).dtypes
    assert found.tolist() == [np.float32, np.float32, pd.Float64Dtype()]


def test_other_channels_at_transform_are_refused():
    with pytest.raises(ValueError, match="feature names should match"):
        tiny().fit(series()).transform(series().rename(columns={"sun": "rain"}))


def test_the_convolutional_network_learns_to_use_what_is_shown_from_zero():
    """Weights of what is shown start at 0, so it changes nothing at first, and its values decide once they are not."""
    network = Conv1d((2, 16), (8, 8), shown=64)
    x, level, shown = torch.randn(3, 2, 16), torch.randn(3), torch.randn(3, 4, 16)
    plain = network(x, level)
    assert torch.equal(network(x, level, shown), plain)
    for name, weight in network.named_parameters():
        if name.endswith("shown"):
            torch.nn.init.normal_(weight)
    assert torch.equal(network(x, level), plain)
    changed = (network(x, level, shown) != plain).flatten(1).any(1)
    assert changed.all()
    assert torch.equal(network(x, level, torch.zeros_like(shown)), plain)
