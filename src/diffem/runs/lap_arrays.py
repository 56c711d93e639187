"""The arrays and losses of a finished lap, for its report.

These are `samples.npy` and `posterior.npy`, whose checksums are in the lap's `metrics.json`, and the losses of its
training, `losses.json`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ..core.errors import InputError
from ..files.arrays import read_array
from ..files.origin import require_origin
from ..files.reading import digest, read_json
from ..files.writing import array_bytes, write_bytes, write_json
from .rundir import RunDir

# smallest number of axes of (samples, *event) and (draws, observations, *event)
AXES = {"samples.npy": 2, "posterior.npy": 3}


def write_lap_arrays(run: RunDir, lap: int, arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """Write arrays by file name, and return their checksums for `files` in the lap's metrics."""
    checksums = {}
    for name, array in arrays.items():
        data = array_bytes(array)
        write_bytes(run.file(lap, name), data)
        checksums[name] = digest(data)
    return checksums


def read_lap_array(run: RunDir, lap: int, name: str, metrics: dict[str, Any] | None = None) -> np.ndarray:
    """Read an array and compare it with its checksum. Laps of early versions have no checksums."""
    file = run.file(lap, name)
    files = (run.lap_metrics(lap) if metrics is None else metrics).get("files", {})
    if not isinstance(files, dict) or not isinstance(files.get(name, ""), str):
        raise InputError(f"{run.metrics_file(lap)}: 'files' must contain the checksum of {name} as text")
    array = read_array(file, files.get(name))
    if array.dtype.kind != "f" or array.ndim < AXES[name] or 0 in array.shape:
        raise InputError(f"{file} holds {array.dtype} {array.shape}; needed: numbers with {AXES[name]} axes or more")
    return array


def write_losses(run: RunDir, lap: int, losses: list[tuple[int, float]]) -> None:
    """Write the losses of a lap's training, `(step, mean loss since the previous entry)`."""
    origin = run.origin("losses", lap)
    write_json(run.file(lap, "losses.json"), {"losses": losses, "origin": origin and origin.note()})


def read_losses(run: RunDir, laps: Iterable[int]) -> tuple[list[float], list[float]]:
    """Read the optimizer steps and losses of several laps, concatenated; laps without losses are skipped."""
    steps: list[float] = []
    losses: list[float] = []
    done = 0.0
    for lap in laps:
        if not (file := run.file(lap, "losses.json")).is_file():
            continue
        held = read_json(file)
        entries = held.get("losses") if isinstance(held, dict) else None
        if not isinstance(entries, list) or not entries or not all(map(_is_point, entries)):
            raise InputError(f"{file} must contain a list of losses, pairs of a step and a loss")
        require_origin(held, run.origin("losses", lap), file)
        steps += [done + step for step, _ in entries]
        losses += [loss for _, loss in entries]
        done = steps[-1]
    return steps, losses


def _is_point(entry: Any) -> bool:
    return isinstance(entry, list) and len(entry) == 2 and all(isinstance(value, int | float) for value in entry)
