"""Gaps that are made on purpose: in rows that are held out, to predict what is hidden, and in additional rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Gaps = Callable[[tuple[int, ...], np.random.RandomState], np.ndarray]  # shape → which values are missing, of that shape

RARE = 0.1  # share of missing values below which the gaps of a column are too rare to learn from
ADDED = 0.3  # share of the values that additional rows lose
HIDDEN = 0.15  # share of the values of held-out rows that is hidden and predicted
LEAST_HELD_OUT, MOST_HELD_OUT = 10, 512  # rows that are held out of one run


def column_gaps(places: Sequence[slice]) -> Gaps:
    """Every value is missing with probability `HIDDEN`, all coordinates of a category together.

    Args:
        places: The coordinates of each column.
    """
    owner = np.repeat(np.arange(len(places)), [place.stop - place.start for place in places])

    def gaps(shape: tuple[int, ...], random: np.random.RandomState) -> np.ndarray:
        return (random.random_sample((shape[0], len(places))) < HIDDEN)[:, owner]

    return gaps


def parts(z: np.ndarray, folds: int, random: np.random.RandomState) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """The rows to learn from and those to predict hidden values of, for each of several runs.

    Args:
        z: The rows, `(n, ...)`.
        folds: The number of runs. Each of several leaves out another part of the rows; a single one leaves out a tenth,
            or nothing if that is less than `LEAST_HELD_OUT` rows.
        random: Chooses rows.
    """
    order = random.permutation(len(z))
    if folds == 1:
        count = min(len(z) // 10, MOST_HELD_OUT)
        return [(z[order[count:]], z[order[:count]])] if count >= LEAST_HELD_OUT else [(z, None)]
    pieces = np.array_split(order, folds)
    return [(z[np.setdiff1d(order, piece)], z[piece[:MOST_HELD_OUT]]) for piece in pieces]


def with_more_gaps(z: np.ndarray, places: Sequence[slice], random: np.random.RandomState) -> np.ndarray:
    """The rows z `(n, size)`, and copies of half of them with further gaps if those of some column are rare.

    Args:
        z: The matrix, NaN where a value is missing.
        places: The coordinates of each column, which are missing together.
        random: Chooses rows and values.
    """
    if np.isnan(z).mean(0).min() >= RARE:
        return z
    copies = z[random.permutation(len(z))[: max(1, len(z) // 2)]]
    for place in places:
        copies[random.random_sample(len(copies)) < ADDED, place] = np.nan
    return np.concatenate([z, copies[~np.isnan(copies).all(1)]])
