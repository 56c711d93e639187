"""Which values are missing: completely at random, at random given observed columns, or not at random.

MAR and MNAR follow Muzellec et al. (2020), as DiffPuter does: 30 % of the columns decide, by a logistic model with
random weights whose intercept gives the wanted share, which values of the other columns are missing. Under MAR the
deciding columns are complete. Under MNAR their own values are missing too, at random, so what decides is partly
unknown.
"""

from __future__ import annotations

import numpy as np

MECHANISMS = ("mcar", "mar", "mnar")
DECIDING = 0.3  # share of the columns


def missing(values: np.ndarray, mechanism: str, share: float, seed: int) -> np.ndarray:
    """Which of the values `(n, columns)` are missing, `(n, columns)`; no row loses all of them."""
    random = np.random.default_rng([MECHANISMS.index(mechanism), seed])
    n, columns = values.shape
    if mechanism == "mcar":
        gone = random.random(values.shape) < share
    else:
        deciding = np.zeros(columns, dtype=bool)
        deciding[random.permutation(columns)[: max(1, round(DECIDING * columns))]] = True
        standard = (values - values.mean(0)) / values.std(0)
        gone = np.zeros(values.shape, dtype=bool)
        for k in np.flatnonzero(~deciding):
            score = standard[:, deciding] @ random.standard_normal(int(deciding.sum()))
            score = score / score.std()
            gone[:, k] = random.random(n) < _sigmoid(score + _intercept(score, share))
        if mechanism == "mnar":
            gone[:, deciding] = random.random((n, int(deciding.sum()))) < share
    empty = np.flatnonzero(gone.all(1))
    gone[empty, random.integers(0, columns, len(empty))] = False
    return gone


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def _intercept(score: np.ndarray, share: float) -> float:
    """b with mean sigmoid(score + b) = share, by bisection."""
    low, high = -50.0, 50.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _sigmoid(score + middle).mean() < share else (low, middle)
    return high
