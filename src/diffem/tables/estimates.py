"""One value out of the draws of a missing one."""

from __future__ import annotations

import numpy as np

from .columns import Column


def estimate(column: Column, draws: np.ndarray, kind: str = "mean") -> np.ndarray:
    """The mean or median `(n,)` of draws `(k, n)`, and of categories the number of the most frequent one."""
    if column.is_categorical:
        return probabilities(column, draws).argmax(1).astype(np.float64)
    return np.median(draws, 0) if kind == "median" else draws.mean(0)


def probabilities(column: Column, draws: np.ndarray) -> np.ndarray:
    """The probability of every category `(n, categories)` by its frequency in draws `(k, n)`, never 0."""
    categories = np.arange(len(column.categories))
    counts = (draws[:, :, None] == categories).sum(0)
    prior = 1 / len(categories)  # as if each had been drawn that often besides: 1 in all
    return (counts + prior) / (len(draws) + 1)
