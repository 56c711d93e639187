"""Pictures of samples that are points: one row per set, all with the axes of the first."""

import io

import numpy as np
import pytest
from PIL import Image

from diffem.report import pictures


def image(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"), dtype=float)


@pytest.mark.parametrize("count", [pictures.FEW // 8, 2 * pictures.FEW])
def test_a_set_that_moved_looks_different_and_one_that_did_not_the_same(count):
    x = np.random.default_rng(0).normal(size=(count, 3))
    same, moved = (image(pictures.marginals({"a": x, "b": x + shift})) for shift in (0.0, 2.0))
    assert same.shape == moved.shape
    half = same.shape[0] // 2
    assert np.array_equal(same[:half], moved[:half])
    assert not np.array_equal(same[half:], moved[half:])


def test_identical_points_are_visible():
    """An axis of length zero would show nothing."""
    few, many = np.zeros((3, 2)), np.zeros((pictures.FEW, 2))
    picture = image(pictures.marginals({"few": few, "many": many}))
    half = picture.shape[0] // 2
    accent = np.array([int(pictures.ACCENT[i : i + 2], 16) for i in (1, 3, 5)])
    assert (np.abs(picture[:half] - accent).max(-1) < 100).any()  # the dot, which is partly transparent
    inside = picture[half + half // 4 : -half // 4, picture.shape[1] // 4 : -picture.shape[1] // 4]
    assert len(np.unique(inside.reshape(-1, 3), axis=0)) > 1  # one bin is darker than the empty ones


@pytest.mark.parametrize("event", [(8, 8), (3, 8, 8), (2, 8, 8)])
def test_pictures_do_not_depend_on_the_units_of_the_data(event):
    x = np.random.default_rng(0).normal(size=(6, *event))
    for factor in (2.0**-20, 2.0**20):
        assert pictures.grid(factor * x) == pictures.grid(x)


def test_posteriors_of_colour_images_look_the_same_in_any_units():
    draws = np.random.default_rng(0).normal(size=(2, 1, 3, 8, 8))
    seen = np.where(draws[0] > 1, np.nan, draws[0])
    assert pictures.posterior(seen / 1024, draws / 1024) == pictures.posterior(seen, draws)


def test_the_deviation_of_colour_images_is_one_number_per_pixel():
    draws = np.random.default_rng(0).normal(size=(2, 1, 3, 8, 8))
    picture, exchanged = (image(pictures.posterior(None, x)) for x in (draws, draws[:, :, [2, 0, 1]]))
    last = 3 * picture.shape[1] // 4  # the columns are two draws, mean, deviation
    assert (picture[:, last:] == exchanged[:, last:]).all()
    assert (picture[:, :last] != exchanged[:, :last]).any()


@pytest.mark.parametrize("event", [(4, 16), (4, 16, 2), (2, 4, 16)])
def test_rows_of_wide_images_have_no_gaps_between_them(event):
    draws = np.random.default_rng(0).normal(size=(2, 8, *event))
    picture = image(pictures.posterior(None, draws))
    blank = (picture == 255).all((1, 2))
    assert blank[picture.shape[0] // 8 :].mean() < 0.4  # below the titles
