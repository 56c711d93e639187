r"""Encoding of a column of numbers with mean 0 and about unit variance, half by ranks and half by values.

A value v with F₋ = P(x < v) and F = P(x ≤ v) among the observed values has the normal quantile of its rank,

    r(v) = Φ⁻¹((F₋ + F)/2)          a value that few rows share,
    r(v) = E[r | F₋ < Φ(r) ≤ F]     an atom: a value that many rows share (zeros, small counts, grades),

which resolves the bulk of a skewed column, but hardly distinguishes large values. The standardised value u(v),
compressed beyond `LINEAR` standard deviations, does. The column is encoded as z(v) = (r(v) + u(v))/2, standardised, and
interpolated linearly between observed values. The inverse maps the whole interval of an atom to its value, interpolates
elsewhere, and never leaves the range of the observed values: imputed counts are not negative, and shares stay between 0
and 1.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtri

ATOM = 0.005  # smallest fraction of the rows that share an atom; at least two rows
KNOTS = 1000  # largest number of values that are stored besides atoms
LINEAR = 3.0  # standard deviations beyond which the encoding is logarithmic
LEAST_STD = 0.25  # smallest standard deviation that the encoding divides by
BEYOND = 2.0  # largest distance of the code of a new value from those of the observed range


class RankGaussian:
    """The transform of one column.

    Attributes:
        values: `(k,)`, increasing. Observed values.
        z: `(k,)`, increasing. Their codes, with mean 0 and about unit variance.
    """

    def __init__(self, observed: np.ndarray) -> None:
        """observed: `(n,)`, finite, at least two different values."""
        observed = np.asarray(observed, dtype=np.float64)
        # numbers are divided by a power of two, which is exact, so that squares of huge ones do not overflow
        self._exponent = int(np.frexp(np.abs(observed).max())[1])
        observed = np.ldexp(observed, -self._exponent)
        values, counts = np.unique(observed, return_counts=True)
        share, high = counts / counts.sum(), np.minimum(counts.cumsum() / counts.sum(), 1.0)
        low = np.concatenate([[0.0], high[:-1]])
        atom = (share >= ATOM) & (counts > 1)  # a single row can have that share
        ends = np.stack([ndtri(low), ndtri(high)])  # both ends of the interval of each value
        ranks = np.where(atom, -np.diff(_normal_density(ends), axis=0)[0] / share, ndtri((low + high) / 2))
        between = _compressed((values[1:] + values[:-1]) / 2, values, share)
        z = (ranks + _compressed(values, values, share)) / 2
        ends[0, 1:], ends[1, :-1] = (ends[0, 1:] + between) / 2, (ends[1, :-1] + between) / 2
        mean = float(share @ z)
        std = max(float(np.sqrt(share @ (z - mean) ** 2)), LEAST_STD)
        kept = _spread(atom, high)
        self._scaled, self.z = values[kept], (z[kept] - mean) / std
        self.values = np.ldexp(self._scaled, self._exponent)
        self._slope = 1 / max(float(np.std(observed)), 1e-300)
        self._knots = _decoding_knots(self._scaled, self.z, (ends[:, kept] - mean) / std, atom[kept])

    def encode(self, x: np.ndarray) -> np.ndarray:
        """z `(n,)` of values x `(n,)`; NaN stays NaN."""
        x = np.ldexp(x, -self._exponent)
        beyond = (x - np.clip(x, self._scaled[0], self._scaled[-1])) * self._slope
        return np.interp(x, self._scaled, self.z) + np.clip(beyond, -BEYOND, BEYOND)

    def decode(self, z: np.ndarray) -> np.ndarray:
        """Values in the observed range, of the shape of z."""
        return np.ldexp(np.interp(z, *self._knots), self._exponent)


def _normal_density(z: np.ndarray) -> np.ndarray:
    return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


def _compressed(x: np.ndarray, values: np.ndarray, share: np.ndarray) -> np.ndarray:
    """x `(m,)` standardised by values `(k,)` with shares `(k,)`, logarithmic beyond `LINEAR` standard deviations."""
    mean = share @ values
    u = (x - mean) / max(float(np.sqrt(share @ (values - mean) ** 2)), 1e-300)
    return np.clip(u, -LINEAR, LINEAR) + np.sign(u) * np.log1p(np.maximum(np.abs(u) - LINEAR, 0))


def _spread(atom: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The places of all atoms and of at most `KNOTS` other values, equally far apart in probability, with both ends."""
    wanted = np.searchsorted(high, np.linspace(0, 1, KNOTS))
    return np.unique(np.concatenate([[0], np.flatnonzero(atom), wanted.clip(max=len(high) - 1), [len(high) - 1]]))


def _decoding_knots(
    values: np.ndarray, z: np.ndarray, ends: np.ndarray, atom: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Points (z, value) of the inverse: both ends of the interval of an atom, one point for every other value."""
    ends = np.where(np.isfinite(ends), ends, z)  # beyond the first and the last value the inverse is constant
    repeats = np.where(atom, 2, 1)
    places = np.repeat(z, repeats)
    last = repeats.cumsum()
    places[last[atom] - 2], places[last[atom] - 1] = ends[0, atom], ends[1, atom]
    return places, np.repeat(values, repeats)
