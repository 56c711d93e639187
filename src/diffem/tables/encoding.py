"""Encoding of a table as a matrix of about standard normal numbers, and decoding of draws of such a matrix.

Numbers are encoded by their ranks and values (`quantiles.py`), categories by code words (`codes.py`). A column with a
single value has no coordinate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from .codes import Codebook
from .columns import Column, describe
from .quantiles import RankGaussian


class Encoding:
    """The columns of a table and their coordinates.

    Attributes:
        columns: All columns, in the order of the table.
        places: The coordinates of each column; empty for a constant.
        size: The number of coordinates.
    """

    def __init__(
        self, frame: pd.DataFrame, kinds: Mapping[Any, str] | None = None, round_integers: bool = True
    ) -> None:
        """Learn the transforms from the observed values of a table; kinds: the kinds of some columns, by name."""
        kinds = kinds or {}
        self.columns = [describe(frame[name], kinds.get(name), round_integers) for name in frame.columns]
        self._transforms: list[RankGaussian | Codebook | None] = []
        self._constants: list[float] = []
        self.places: list[slice] = []
        self.size = 0
        for column in self.columns:
            observed = column.numbers(frame[column.name])
            observed = observed[~np.isnan(observed)]
            transform = _transform(column, observed)
            width = transform.words.shape[1] if isinstance(transform, Codebook) else int(transform is not None)
            self._transforms.append(transform)
            self._constants.append(float(observed[0]))
            self.places.append(slice(self.size, self.size + width))
            self.size += width

    def encode(self, frame: pd.DataFrame) -> np.ndarray:
        """Encode a table as a matrix `(n, size)` in float32, with NaN for missing values and unknown categories."""
        return self._encoded([column.numbers(frame[column.name]) for column in self.columns])

    def _encoded(self, numbers: list[np.ndarray]) -> np.ndarray:
        z = np.empty((*numbers[0].shape, self.size), dtype=np.float32)
        for values, transform, place in zip(numbers, self._transforms, self.places, strict=True):
            if isinstance(transform, Codebook):
                z[..., place] = transform.encode(np.where(np.isnan(values), -1, values).astype(np.int64))
            elif transform is not None:
                z[..., place.start] = transform.encode(values)
        return z

    def snapped(self, z: np.ndarray) -> np.ndarray:
        """Move draws z `(..., size)` to the nearest codes of possible values."""
        return self._encoded([self.decode(k, z) for k in range(len(self.columns))])

    def decode(self, k: int, z: np.ndarray) -> np.ndarray:
        """Decode column k of draws z `(..., size)` to numbers `(...)`, as in `Column.numbers`."""
        transform, place = self._transforms[k], self.places[k]
        if transform is None:
            return np.full(z.shape[:-1], self._constants[k])
        if isinstance(transform, Codebook):
            return transform.decode(z[..., place]).astype(np.float64)
        numbers = transform.decode(z[..., place.start])
        return np.rint(numbers) if self.columns[k].kind == "integer" else numbers

    def within(self, k: int, numbers: np.ndarray) -> np.ndarray:
        """Clip numbers to the range of the observed values of column k."""
        transform = self._transforms[k]
        if isinstance(transform, RankGaussian):
            return numbers.clip(transform.values[0], transform.values[-1])
        return numbers

    def expected_probabilities(self, k: int, mean: np.ndarray) -> np.ndarray | None:
        """Probabilities of the categories of column k from expectations `(n, size)`; see `Codebook.probabilities`."""
        transform = self._transforms[k]
        if transform is None:
            return np.ones((len(mean), 1))
        assert isinstance(transform, Codebook)
        return transform.probabilities(mean[:, self.places[k]])

    @property
    def numeric(self) -> np.ndarray:
        """Which coordinates are numbers, `(size,)`."""
        widths = [place.stop - place.start for place in self.places]
        return np.repeat([not column.is_categorical for column in self.columns], widths)


def _transform(column: Column, observed: np.ndarray) -> RankGaussian | Codebook | None:
    if (observed == observed[0]).all():
        return None
    if column.is_categorical:
        return Codebook(np.bincount(observed.astype(np.int64), minlength=len(column.categories)))
    return RankGaussian(observed)
