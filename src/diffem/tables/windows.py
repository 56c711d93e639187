"""Conversion of a series to windows on a regular grid of times, and back.

Every time is moved to the nearest point of the grid. A point without a value is a gap; a point with several values has
their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import pandas as pd

from ..core.errors import InputError

LARGEST = 1 << 26  # points of a grid


def times_of(frame: pd.DataFrame) -> np.ndarray:
    """Convert the index of a series to times `(n,)`.

    Raises:
        InputError: If the index contains neither numbers nor dates, or does not increase.
    """
    index = frame.index
    if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex):
        times = index.as_unit("ns").asi8.astype(np.float64)
    elif pd.api.types.is_numeric_dtype(index.dtype):
        times = index.to_numpy(dtype=np.float64)
    else:
        raise InputError(f"the index of a series must hold its times, numbers or dates, got {index.dtype}")
    if index.hasnans or not np.isfinite(times).all() or (np.diff(times) <= 0).any():
        raise InputError("the times of a series, its index, must be finite and increase")
    return times


def clock_of(frame: pd.DataFrame) -> str:
    """The kind of the times of a series: dates, durations or numbers; their units differ."""
    kinds = {pd.DatetimeIndex: "dates", pd.TimedeltaIndex: "durations"}
    return next((name for kind, name in kinds.items() if isinstance(frame.index, kind)), "numbers")


def require_clock(frame: pd.DataFrame, clock: str) -> None:
    """Raise InputError unless the times of a series are of the kind `clock`."""
    if clock_of(frame) != clock:
        raise InputError(f"the times of a series, its index, are {clock_of(frame)}, those of the others are {clock}")


def spacing(every: Any, times: list[np.ndarray], clock: str = "dates") -> float:
    """The spacing of the grid.

    Args:
        every: A positive number, or for dates a duration such as `"1h"`; None for the median difference of the times.
        times: The times of all series, at least two each.
        clock: The kind of the times, as `clock_of` returns it.
    """
    if isinstance(every, str | timedelta) and clock == "numbers":
        raise InputError(f"every must be a number, as the times of the series are, got {every!r}")
    if every is None:
        return float(np.median(np.concatenate([np.diff(t) for t in times])))
    try:
        step = float(pd.Timedelta(every).as_unit("ns").value if isinstance(every, str | timedelta) else every)
    except (TypeError, ValueError):
        step = np.nan
    if not 0 < step < np.inf:
        raise InputError(f"every must be a positive number or a duration such as '1h', got {every!r}")
    return step


@dataclass(frozen=True)
class Grid:
    """The values of one series on a regular grid.

    Attributes:
        values: `(channels, points)`, NaN where there is none.
        places: The point of every row of the series, `(n,)`.
    """

    values: np.ndarray
    places: np.ndarray

    @classmethod
    def of(cls, z: np.ndarray, times: np.ndarray, every: float) -> Grid:
        """z: `(n, channels)` at times `(n,)`."""
        places = np.rint((times - times[0]) / every).astype(np.int64)
        points = int(places[-1]) + 1
        if points * z.shape[1] > LARGEST:
            raise InputError(
                f"a grid from the first to the last time every {every:g} has {points} points; "
                "the times are too irregular, split the series"
            )
        sums, counts = np.zeros((points, z.shape[1])), np.zeros((points, z.shape[1]))
        np.add.at(sums, places, np.nan_to_num(z))
        np.add.at(counts, places, ~np.isnan(z))
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return cls(means.T.astype(np.float32), places)

    def windows(self, length: int, stride: int) -> tuple[np.ndarray, np.ndarray]:
        """Cut the grid into windows `(m, channels, length)`, NaN beyond its end; also returns their first points."""
        channels, points = self.values.shape
        firsts = np.arange(0, max(1, points - length + stride), stride)
        firsts = np.unique(np.minimum(firsts, max(0, points - length)))
        padded = np.full((channels, max(points, length)), np.nan, dtype=np.float32)
        padded[:, :points] = self.values
        return np.stack([padded[:, first : first + length] for first in firsts]), firsts

    def joined(self, windows: np.ndarray, firsts: np.ndarray) -> np.ndarray:
        """Join windows `(..., m, channels, length)` to a grid `(..., points, channels)`, by the nearest window."""
        points, length = self.values.shape[1], windows.shape[-1]
        middles = firsts + (length - 1) / 2
        nearest = np.searchsorted((middles[1:] + middles[:-1]) / 2, np.arange(points))
        # indices on both sides of a slice put the axis of points first
        return np.moveaxis(windows[..., nearest, :, np.arange(points) - firsts[nearest]], 0, -2)
