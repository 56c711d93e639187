"""A table as a matrix of about standard normal numbers, and draws of that matrix as values of the table again.

Numbers go through their ranks (`quantiles.py`), categories through code words (`codes.py`). A column with a single value has no coordinate:
nothing about it is uncertain.
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
    """The columns of a table, and where the coordinates of each are.

    Attributes:
        columns: All columns, in the table's order.
        places: Per column its coordinates; empty for a constant.
        size: The number of coordinates.
    """

    def __init__(
        self, frame: pd.DataFrame, kinds: Mapping[Any, str] | None = None, round_integers: bool = True
    ) -> None:
        """Learn the transforms from the observed values of a table; `kinds` names what some columns hold."""
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
        """The matrix `(n, size)` in float32, NaN where a value is missing or a category was never observed in the fit."""
        z = np.empty((len(frame), self.size), dtype=np.float32)
        for column, transform, place in zip(self.columns, self._transforms, self.places, strict=True):
            if transform is None:
                continue
            numbers = column.numbers(frame[column.name])
            if isinstance(transform, Codebook):
                z[:, place] = transform.encode(np.where(np.isnan(numbers), -1, numbers).astype(np.int64))
            else:
                z[:, place.start] = transform.encode(numbers)
        return z

    def decode(self, k: int, z: np.ndarray) -> np.ndarray:
        """Column k of draws z `(..., size)` as numbers `(...)`, those of `Column.numbers`."""
        transform, place = self._transforms[k], self.places[k]
        if transform is None:
            return np.full(z.shape[:-1], self._constants[k])
        if isinstance(transform, Codebook):
            return transform.decode(z[..., place]).astype(np.float64)
        numbers = transform.decode(z[..., place.start])
        return np.rint(numbers) if self.columns[k].kind == "integer" else numbers


def _transform(column: Column, observed: np.ndarray) -> RankGaussian | Codebook | None:
    if (observed == observed[0]).all():
        return None
    if column.is_categorical:
        return Codebook(np.bincount(observed.astype(np.int64), minlength=len(column.categories)))
    return RankGaussian(observed)
