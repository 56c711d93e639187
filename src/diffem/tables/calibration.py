"""Calibration of draws and of probabilities by hidden values of held-out rows.

The distance of a draw from its expectation is multiplied by one factor per column, so that 90 % intervals contain 90 %
of the hidden values. A factor per column keeps the correlations between the missing values of a row. Probabilities p of
categories are replaced by powers pᵃ, normalised, with the exponent of maximum likelihood for the hidden categories.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .held_out import HiddenValues, Snap
from .scores import covered

TARGET = 0.9
FACTORS = np.geomspace(0.5, 2.0, 25)
TRUSTED = 100  # number of hidden values at which a column counts as much as all columns together
EXPONENTS = np.linspace(0.4, 1.6, 25)
FEW = 50  # smallest number of hidden values for a calibration


def spread_factors(held: HiddenValues, snap: Snap, numeric: np.ndarray) -> np.ndarray:
    """Compute the factors of the distance of draws from their expectation, `(size, 1, ...)` for rows `(size, ...)`.

    The factor of a column is a weighted geometric mean of that for its own hidden values and that for all columns; its
    own weight increases with their number. A common factor then corrects the coverage of the whole table.

    Args:
        snap: Moves draws to the nearest possible values.
        numeric: `(size,)`. Which coordinates are numbers; the others have the factor 1.
    """
    size = held.z.shape[1]
    shape = (size, *(1,) * (held.z.ndim - 2))
    hidden = held.hidden & numeric.reshape(shape)
    owner = np.broadcast_to(np.arange(size).reshape(shape), held.z.shape)[hidden]
    factors = np.ones(size)
    if len(owner) < FEW:
        return factors.reshape(shape)
    inside = _inside(held, snap, hidden, factors.reshape(shape))
    common = _factor(inside.mean(1))
    for k in np.unique(owner):
        own = inside[:, owner == k]
        trust = own.shape[1] / (own.shape[1] + TRUSTED)
        factors[k] = _factor(own.mean(1)) ** trust * common ** (1 - trust)
    factors[numeric] *= _factor(_inside(held, snap, hidden, factors.reshape(shape)).mean(1))
    return factors.clip(FACTORS[0], FACTORS[-1]).reshape(shape)


def _inside(held: HiddenValues, snap: Snap, hidden: np.ndarray, factors: np.ndarray) -> np.ndarray:
    """The covered share of each hidden value for intervals scaled by each of `FACTORS`, `(FACTORS, values)`."""
    stretched = (snap(held.drawn.scaled(f * factors).x)[:, hidden] for f in FACTORS)
    return np.stack([covered(draws, held.z[hidden], TARGET) for draws in stretched])


def _factor(inside: np.ndarray) -> float:
    """The factor at which `TARGET` of the values are covered; inside: the coverage for each of `FACTORS`."""
    return float(np.exp(np.interp(TARGET, np.maximum.accumulate(inside), np.log(FACTORS))))


def sharpened(probabilities: np.ndarray, exponent: float) -> np.ndarray:
    """Powers of probabilities `(n, categories)`, normalised."""
    powers = probabilities**exponent
    return powers / powers.sum(1, keepdims=True)


def fitted_exponent(probabilities: Sequence[np.ndarray], codes: Sequence[np.ndarray]) -> float:
    """The exponent of maximum likelihood for codes `(n,)` with probabilities `(n, categories)`, for several columns."""
    if sum(map(len, codes)) < FEW:
        return 1.0
    pairs = list(zip(probabilities, codes, strict=True))
    likelihoods = [sum(float(np.log(sharpened(p, a)[np.arange(len(c)), c]).sum()) for p, c in pairs) for a in EXPONENTS]
    return float(EXPONENTS[int(np.argmax(likelihoods))])
