"""Artificial gaps: in held-out rows, whose hidden values are predicted, and in additional training rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

Gaps = Callable[[tuple[int, ...], np.random.RandomState], np.ndarray]  # shape → which values are missing, of that shape

RARE = 0.1  # fraction of missing values of a column below which rows with more gaps are added
ADDED = 0.3  # fraction of the values that are removed from additional rows
HIDDEN = 0.15  # fraction of the values of held-out rows that is hidden and predicted
LEAST_HELD_OUT, MOST_HELD_OUT = 10, 512  # numbers of held-out rows of a run


def column_gaps(places: Sequence[slice]) -> Gaps:
    """Hide every value with probability `HIDDEN`, all coordinates of a category together; places: those of columns."""
    owner = np.repeat(np.arange(len(places)), [place.stop - place.start for place in places])

    def gaps(shape: tuple[int, ...], random: np.random.RandomState) -> np.ndarray:
        return (random.random_sample((shape[0], len(places))) < HIDDEN)[:, owner]

    return gaps


def parts(z: np.ndarray, folds: int, random: np.random.RandomState) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Split rows z `(n, ...)` into training and held-out rows, for each of several runs.

    Several runs hold out different parts of the rows. A single run holds out a tenth, or nothing if that is less than
    `LEAST_HELD_OUT` rows.
    """
    order = random.permutation(len(z))
    if folds == 1:
        count = min(len(z) // 10, MOST_HELD_OUT)
        return [(z[order[count:]], z[order[:count]])] if count >= LEAST_HELD_OUT else [(z, None)]
    pieces = np.array_split(order, folds)
    return [(z[np.setdiff1d(order, piece)], z[piece[:MOST_HELD_OUT]]) for piece in pieces]


def with_more_gaps(z: np.ndarray, places: Sequence[slice], random: np.random.RandomState) -> np.ndarray:
    """Add copies of half of the rows z `(n, size)` with more gaps, if the gaps of some column are rare.

    places: The coordinates of each column, which are missing together.
    """
    if np.isnan(z).mean(0).min() >= RARE:
        return z
    copies = z[random.permutation(len(z))[: max(1, len(z) // 2)]]
    for place in places:
        copies[random.random_sample(len(copies)) < ADDED, place] = np.nan
    return np.concatenate([z, copies[~np.isnan(copies).all(1)]])
