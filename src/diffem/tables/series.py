"""An imputer for time series with several channels, gaps and irregular times.

A series is cut into overlapping windows (`windows.py`), whose joint distribution over channels and times is learned by
`diffem.fit` with a network that convolves along time.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.errors import InputError, RunWarning
from .base import Imputer, require_count
from .drawing import Draws
from .encoding import Encoding
from .frames import as_frame, filled, like
from .gaps import RARE
from .predictions import Predictions, predict
from .recipe import default_recipe
from .windows import Grid, clock_of, require_clock, spacing, times_of

LAPS = 8
COVERED = 4  # number of training windows that contain a point
BLOCK = 0.25  # longest artificial gap, relative to the window


@dataclass(kw_only=True, repr=False, eq=False)
class SeriesImputer(Imputer):
    """Fill the gaps of series of numbers, `(times, channels)`.

    X is a data frame whose index contains the times, numbers or dates, or an array with one row per unit of time; or a
    list of such series, which are independent examples of the same kind. The result has the same rows. To impute at
    other times, add rows of NaN there. Observed values are never changed.

    Args:
        window: Number of times in a window. The middle of a much longer gap is imputed without the values around it.
        every: The spacing of times on the grid: a number, or for dates a duration such as "1h" or a number of
            nanoseconds. Default: the median difference of the times.
        laps: Laps of EM. Default: 8.
        steps: Training steps per lap. Default: chosen by the number of windows.
        draws: See `DiffusionImputer`, also for the other parameters.
        n_imputations: Number of completed series that `sample_posterior` returns.
        estimate: "mean" or "median" of the draws.
    """

    window: int = 64
    every: Any = None

    every_: float = field(init=False)
    clock_: str = field(init=False)

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn from one or several series; y is not used."""
        random = self._check_parameters()
        require_count("window", self.window, least=4)
        frames = [as_frame(series, least_rows=2) for series in _as_list(X)]
        validate_data(self, _as_list(X)[0], reset=True, skip_check_array=True)
        if any(list(frame.columns) != list(frames[0].columns) for frame in frames):
            other = next(list(frame.columns) for frame in frames if list(frame.columns) != list(frames[0].columns))
            raise InputError(
                "all series must have the same channels, in the same order, got "
                f"{list(frames[0].columns)[:8]} and {other[:8]}"
            )
        times, self.clock_ = [times_of(frame) for frame in frames], clock_of(frames[0])
        for frame in frames:
            require_clock(frame, self.clock_)
        self.every_ = spacing(self.every, times, self.clock_)
        whole = pd.concat(frames, ignore_index=True)
        self.encoding_ = Encoding(whole, dict.fromkeys(whole.columns, "numeric"))
        if self.encoding_.size < len(whole.columns):
            constant = [
                c.name for c, p in zip(self.encoding_.columns, self.encoding_.places, strict=True) if p.start == p.stop
            ]
            raise InputError(f"channels must vary, but {constant[:5]} have a single value: leave them out")
        grids = [Grid.of(self.encoding_.encode(f), t, self.every_) for f, t in zip(frames, times, strict=True)]
        _warn_of_coarse(grids, self.every)
        windows, held_out = _split(grids, int(self.window))
        windows = with_more_blocks(windows, random)
        recipe = default_recipe(len(windows), self.laps or LAPS, self.steps) | {
            "network": {"kind": "conv1d", "hidden": [64, 64, 64, 64]},
            "gaussian": {},
        }
        self.model_ = self._learner(recipe, block_gaps, lambda draws: draws).learn([(windows, held_out)])
        return self

    def transform(self, X: Any) -> Any:
        """Fill the gaps of the series with estimates; the result has the form of X."""
        done = []
        for series in _as_list(X):
            frame, found = self._predictions(series, int(self.draws))
            done.append(like(_completed(frame, [p.estimate(self.estimate) for p in found]), series))
        return done if _is_several(X) else done[0]

    def sample_posterior(self, X: Any, n_imputations: int | None = None) -> list[Any]:
        """Return several completed versions of X, whose gaps are filled with different draws."""
        count = self._imputations(n_imputations)
        done: list[list[Any]] = [[] for _ in range(count)]
        for series in _as_list(X):
            frame, found = self._predictions(series, self._draws_for(count))
            for i, kept in enumerate(done):
                kept.append(like(_completed(frame, [p.draws[i] for p in found]), series))
        return done if _is_several(X) else [kept[0] for kept in done]

    def _predictions(self, series: Any, draws: int) -> tuple[pd.DataFrame, list[Predictions]]:
        """Return the series `(n, channels)`, and predictions of all values of each channel."""
        check_is_fitted(self, "model_")
        frame = as_frame(series)
        validate_data(self, series, reset=False, skip_check_array=True)
        times = times_of(frame)
        require_clock(frame, self.clock_)
        grid = Grid.of(self.encoding_.encode(frame), times, self.every_)
        windows, firsts = grid.windows(int(self.window), max(1, int(self.window) // 2))
        drawn = self.model_.draw(windows, draws, steps=int(self.sampling_steps), seed=self.seed_)
        drawn = Draws(*(grid.joined(part, firsts)[..., grid.places, :] for part in (drawn.x, drawn.mean)))
        rows = np.arange(len(frame))
        return frame, [predict(self.encoding_, k, drawn, rows) for k in range(len(frame.columns))]


def _as_list(X: Any) -> list[Any]:
    if isinstance(X, list) and not X:
        raise InputError("X must contain at least one series, got an empty list")
    return X if _is_several(X) else [X]


def _is_several(X: Any) -> bool:
    """Whether X is a list of series; a nested list of numbers is one series."""
    return isinstance(X, list) and all(isinstance(series, pd.DataFrame | np.ndarray) for series in X)


def _completed(frame: pd.DataFrame, values: Sequence[np.ndarray]) -> pd.DataFrame:
    """Fill the gaps of each channel with its values `(n,)`."""
    gaps = frame.isna().to_numpy()
    columns = [filled(frame[name], gaps[:, k], values[k][gaps[:, k]]) for k, name in enumerate(frame.columns)]
    return pd.concat(columns, axis=1)


def _warn_of_coarse(grids: list[Grid], every: Any) -> None:
    """Warn if most times share a point of the grid with another: their gaps would all get the same value."""
    rows, points = sum(len(grid.places) for grid in grids), sum(len(np.unique(grid.places)) for grid in grids)
    if points < rows / 2:
        warnings.warn(
            f"{rows} times of the series fall on {points} points of the grid with every={every!r}: values at one point "
            "are averaged, and gaps at one point get one value. Choose a smaller every",
            RunWarning,
            stacklevel=3,
        )


def _split(grids: list[Grid], length: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Make training windows `(n, channels, length)`, and held-out ones from every fifth series or from the ends."""
    stride = max(1, length // COVERED)
    if len(grids) >= 10:
        kept, held = [grid for k, grid in enumerate(grids) if k % 5], grids[::5]
    else:
        cuts = [grid.values.shape[1] - max(length, grid.values.shape[1] // 10) for grid in grids]
        long = all(cut >= 4 * length for cut in cuts)
        parts = list(zip(grids, cuts, strict=True)) if long else []
        kept = [Grid(grid.values[:, :cut], grid.places) for grid, cut in parts] or grids
        held = [Grid(grid.values[:, cut:], grid.places) for grid, cut in parts]
    windows = [
        _nonempty(np.concatenate([grid.windows(length, stride)[0] for grid in some])) for some in (kept, held) if some
    ]
    enough = len(windows) == 2 and len(windows[1]) > 0
    return windows[0], windows[1] if enough else None


def _nonempty(windows: np.ndarray) -> np.ndarray:
    """Select the windows `(n, channels, length)` that contain a value."""
    return windows[~np.isnan(windows).all((1, 2))]


def block_gaps(shape: tuple[int, ...], random: np.random.RandomState) -> np.ndarray:
    """Choose values of windows `(n, channels, length)` to hide: a block in about half of the channels."""
    n, channels, length = shape
    first = random.randint(length, size=(n, channels, 1))
    width = random.randint(1, max(2, int(BLOCK * length)), size=(n, channels, 1))
    times = np.arange(length)
    return (times >= first) & (times < first + width) & (random.random_sample((n, channels, 1)) < 0.5)


def with_more_blocks(windows: np.ndarray, random: np.random.RandomState) -> np.ndarray:
    """Add copies of half of the windows `(n, channels, length)` with more gaps, in blocks, if gaps are rare."""
    if np.isnan(windows).mean() >= RARE:
        return windows
    copies = windows[random.permutation(len(windows))[: max(1, len(windows) // 2)]]
    copies = np.where(block_gaps(copies.shape, random), np.float32(np.nan), copies)
    return np.concatenate([windows, _nonempty(copies)])
