"""What a finished lap keeps for the report: `samples.npy` and `posterior.npy`, whose checksums are in the lap's `metrics.json`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import InputError
from .files import array_bytes, digest, read_array, write_bytes
from .repair import set_aside
from .rundir import RunDir

AXES = {"samples.npy": 2, "posterior.npy": 3}  # (samples, *event) and (draws, observations, *event), at least


def write_shown(run: RunDir, lap: int, arrays: dict[str, np.ndarray]) -> dict[str, str]:
    """Write arrays by file name; returns their checksums, for `files` in the lap's measures."""
    checksums = {}
    for name, array in arrays.items():
        data = array_bytes(array)
        write_bytes(run.file(lap, name), data)
        checksums[name] = digest(data)
    return checksums


def read_shown(run: RunDir, lap: int, name: str, metrics: dict[str, Any] | None = None) -> np.ndarray:
    """One of the arrays, compared with its checksum; laps measured before there were checksums are read without."""
    file = run.file(lap, name)
    files = (run.lap_metrics(lap) if metrics is None else metrics).get("files", {})
    if not isinstance(files, dict) or not isinstance(files.get(name, ""), str):
        raise InputError(f"{run.metrics_file(lap)}: files should name a checksum of {name}")
    array = read_array(file, files.get(name))
    if array.dtype.kind != "f" or array.ndim < AXES[name] or 0 in array.shape:
        raise InputError(f"{file} holds {array.dtype} {array.shape}; needed: numbers with {AXES[name]} axes or more")
    return array


def restore_shown(run: RunDir, lap: int, make: dict[str, Callable[[], np.ndarray]]) -> None:
    """Make those of a finished lap's arrays again that are missing or damaged.

    Args:
        run: The run.
        lap: A finished lap of it.
        make: By file name, a function that returns the array.
    """
    metrics = run.lap_metrics(lap)
    for name, array in make.items():
        try:
            read_shown(run, lap, name, metrics)
        except InputError as error:
            made = array()
            if (file := run.file(lap, name)).exists():
                set_aside(error, file)
            files = metrics.get("files", {})
            metrics["files"] = {**(files if isinstance(files, dict) else {}), **write_shown(run, lap, {name: made})}
            run.finish_lap(lap, metrics)
