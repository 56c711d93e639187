"""Pictures of samples that are points: a row for every set, all on the axes of the first."""

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


def test_one_coordinate_and_two_sets_of_sizes():
    few, many = np.zeros((3, 1)), np.random.default_rng(1).normal(size=(pictures.FEW, 1))
    assert image(pictures.marginals({"few": few, "many": many})).ndim == 3
