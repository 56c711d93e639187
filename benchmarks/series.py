"""Imputers of series on real recordings, 30 % missing in blocks.

    python -m benchmarks.series --data FOLDER     FOLDER is `aeon/datasets/data` of the package aeon

BasicMotions: accelerometer and gyroscope of a watch, 6 channels of 100 times; methods are fitted to 40 recordings with
gaps and complete those, and 40 others. Gaps are blocks of 5 to 20 times in single channels. Kalman smoothing is a local
linear trend per channel (statsmodels), fitted to each recording by itself; IterativeImputer sees windows of 20 times as
rows. Errors are relative to the standard deviation of a channel.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from diffem.tables.scores import coverage, crps

from .record import RESULTS, earlier, record

SHARE, BLOCKS = 0.3, (5, 20)
DRAWS = 20
WINDOW = 20  # times in a row of IterativeImputer
Sets = list[list[np.ndarray]]  # per set, series (times, channels)


def recordings(path: Path) -> list[np.ndarray]:
    """The series of a `.ts` file, `(times, channels)` each: channels separated by colons, the class last."""
    lines = path.read_text().split("@data")[-1].strip().splitlines()
    return [np.array([c.split(",") for c in line.split(":")[:-1]], dtype=np.float64).T for line in lines]


def blocks(series: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Where a series `(times, channels)` has gaps."""
    gone = np.zeros(series.shape, dtype=bool)
    while gone.mean() < SHARE:
        first, width = random.integers(len(series)), random.integers(*BLOCKS, endpoint=True)
        gone[first : first + width, random.integers(series.shape[1])] = True
    return gone


def interpolated(sets: Sets) -> Sets:
    import pandas as pd

    return [[pd.DataFrame(s).interpolate(limit_direction="both").fillna(0).to_numpy() for s in some] for some in sets]


def smoothed(sets: Sets) -> Sets:
    from statsmodels.tsa.statespace.structural import UnobservedComponents

    def one(channel: np.ndarray) -> np.ndarray:
        if np.isnan(channel).all():
            return np.zeros_like(channel)
        fitted = UnobservedComponents(channel, "lltrend").fit(disp=False, maxiter=50)
        level = fitted.smoothed_state[0]
        return np.where(np.isnan(channel), level, channel)

    return [[np.stack([one(c) for c in s.T], 1) for s in some] for some in sets]


def iterative(sets: Sets) -> Sets:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    def rows(series: np.ndarray, stride: int) -> np.ndarray:
        firsts = range(0, len(series) - WINDOW + 1, stride)
        return np.stack([series[k : k + WINDOW].ravel() for k in firsts])

    imputer = IterativeImputer(max_iter=5, n_nearest_features=40, random_state=0, keep_empty_features=True)
    imputer.fit(np.concatenate([rows(s, WINDOW // 2) for s in sets[0]]))
    # the windows of a recording of 100 times follow each other without overlap
    return [[imputer.transform(rows(s, WINDOW)).reshape(-1, s.shape[1]) for s in some] for some in sets]


RIVALS: dict[str, Callable[[Sets], Sets]] = {"linear": interpolated, "kalman": smoothed, "iterative": iterative}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--laps", type=int)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--window", type=int, default=32)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the result file")
    parser.add_argument("--keep-rivals", action="store_true", help="take the rivals' rows from the result file")
    options = parser.parse_args()
    folder = options.data / "BasicMotions"
    whole = [recordings(folder / f"BasicMotions_{name}.ts") for name in ("TRAIN", "TEST")]
    random = np.random.default_rng(0)
    gone = [[blocks(s, random) for s in some] for some in whole]
    visible = [[np.where(g, np.nan, s) for s, g in zip(*pair, strict=True)] for pair in zip(whole, gone, strict=True)]
    mean, std = (f(np.concatenate(visible[0]), axis=0) for f in (np.nanmean, np.nanstd))
    whole, visible = ([[(s - mean) / std for s in some] for some in sets] for sets in (whole, visible))
    rows: list[dict[str, Any]] = []
    if options.keep_rivals:
        rows = [row for row in earlier("series") if row["method"] in RIVALS]
    for name, method in RIVALS.items() if not options.keep_rivals else ():
        began = time.monotonic()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            completed = method(visible)
        rows.append({"method": name, "seconds": time.monotonic() - began, **errors(completed, whole, gone)})
        print(rows[-1], flush=True)
    rows.append({"method": "diffem", **ours(visible, whole, gone, options)})
    print(rows[-1], flush=True)
    record(
        "series",
        {f"rmse_{row['method']}": row["rmse_out"] for row in rows} | {"coverage90": rows[-1]["coverage90_out"]},
        rows,
        options.results,
    )


def ours(visible: Sets, whole: Sets, gone: Sets, options: argparse.Namespace) -> dict[str, float]:
    from diffem.tables import SeriesImputer

    began = time.monotonic()
    imputer = SeriesImputer(window=options.window, laps=options.laps, steps=options.steps, random_state=0).fit(
        visible[0]
    )
    fitted = time.monotonic() - began
    drawn = [imputer.sample_posterior(some, DRAWS) for some in visible]
    figures = {"seconds": fitted, **errors([imputer.transform(some) for some in visible], whole, gone)}
    for name, some, truth, missing in zip(("in", "out"), drawn, whole, gone, strict=True):
        draws = np.stack([np.concatenate([s[g] for s, g in zip(d, missing, strict=True)]) for d in some])
        x = np.concatenate([s[g] for s, g in zip(truth, missing, strict=True)])
        figures |= {f"crps_{name}": crps(draws, x), f"coverage90_{name}": coverage(draws, x)}
    return figures


def errors(completed: Sets, whole: Sets, gone: Sets) -> dict[str, float]:
    figures = {}
    for name, some, truth, missing in zip(("in", "out"), completed, whole, gone, strict=True):
        off = np.concatenate([(c - s)[g] for c, s, g in zip(some, truth, missing, strict=True)])
        figures |= {f"rmse_{name}": float(np.sqrt((off**2).mean())), f"mae_{name}": float(np.abs(off).mean())}
    return figures


if __name__ == "__main__":
    main()
