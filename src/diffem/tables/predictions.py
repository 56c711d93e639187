"""Predictions of the gaps of one column from draws: estimates of numbers, and probabilities of categories."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .calibration import sharpened
from .columns import Column
from .drawing import Draws
from .encoding import Encoding


@dataclass(frozen=True)
class Predictions:
    """The distribution of the values in the gaps of a column. Categories are given by their index.

    Attributes:
        column: The column.
        rows: `(gaps,)`. The rows of the table that have a gap there.
        draws: `(draws, gaps)`.
        mean: `(gaps,)`. The estimate with the smallest squared error.
        median: `(gaps,)`. The estimate with the smallest absolute error.
        probabilities: `(gaps, categories)`, in the order of `column.categories`; None for numbers.
    """

    column: Column
    rows: np.ndarray
    draws: np.ndarray
    mean: np.ndarray
    median: np.ndarray
    probabilities: np.ndarray | None = None

    def estimate(self, kind: str = "mean") -> np.ndarray:
        """Return the mean or median, `(gaps,)`; for categories the most probable one."""
        if self.probabilities is not None:
            return self.probabilities.argmax(1).astype(np.float64)
        return self.median if kind == "median" else self.mean


def predict(encoding: Encoding, k: int, drawn: Draws, rows: np.ndarray, exponent: float = 1.0) -> Predictions:
    """Predict the gaps of column k.

    Args:
        drawn: Draws of the rows with a gap there.
        rows: `(gaps,)`. The positions of these rows in the table.
        exponent: The exponent of probabilities (`calibration.py`).
    """
    column, draws = encoding.columns[k], encoding.decode(k, drawn.x)
    if column.is_categorical:
        p = sharpened(probabilities(encoding, k, drawn), exponent)
        most = p.argmax(1).astype(np.float64)
        return Predictions(column, rows, draws, most, most, p)
    mean, place = draws.mean(0), encoding.places[k]
    if place.stop > place.start:
        mean = encoding.within(k, mean + correction(draws, drawn.x[..., place.start], drawn.mean[:, place.start]))
    return Predictions(column, rows, draws, mean, np.median(draws, 0))


def correction(draws: np.ndarray, z: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """The correction of the mean of draws `(k, n)`, encoded as z `(k, n)`, if the exact mean of z is `mean` `(n,)`.

    z is a control variate: the error of the mean of the draws is that of z times the slope of the draws in z.
    """
    mean_error, deviations = z.mean(0) - mean, z - z.mean(0)
    slope = ((draws - draws.mean(0)) * deviations).sum(0) / np.maximum((deviations**2).sum(0), 1e-12)
    return -slope * mean_error


def probabilities(encoding: Encoding, k: int, drawn: Draws) -> np.ndarray:
    """The probability of every category of column k, `(n, categories)`, never 0.

    It is computed from the expectation of the code words, or from the frequencies of draws for binary codes.
    """
    count, draws = len(encoding.columns[k].categories), len(drawn.x)
    p = encoding.expected_probabilities(k, drawn.mean)
    if p is None:
        p = (encoding.decode(k, drawn.x)[:, :, None] == np.arange(count)).mean(0)
    p = np.clip(p, 0, 1)
    p = p / np.maximum(p.sum(1, keepdims=True), 1e-12)
    return (draws * p + 1 / count) / (draws + 1)  # as with 1/count additional draws of each category
