"""Observations from a file: one written by `Observations.save`, or an array of measured values with its noise level."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..files.arrays import read_array
from .observations import Observations

TABLES = (".csv", ".tsv", ".txt", ".xlsx", ".parquet")


def read_observations(path: Path, sigma: Any = None) -> Observations:
    """Read observations; this executes no code.

    Args:
        path: A file of `Observations.save`; or a `.npy` array `(n, *event)` of direct measurements of x, NaN for values
            that were not measured.
        sigma: The noise level of an array, as `Observations` accepts it.

    Raises:
        InputError: If the file cannot be read, or `sigma` is missing, or given twice.
    """
    if path.suffix in TABLES:
        raise InputError(f"{path} is a table. {about_table(path)}")
    if path.suffix != ".npy":
        if sigma is not None:
            raise InputError(f"{path} contains its noise level: sigma is for .npy files only")
        return Observations.load(path)
    if sigma is None:
        raise InputError(f"{path} is an array: the noise level is needed too (sigma)")
    return Observations(read_array(path), sigma=sigma)


def about_table(path: Path) -> str:
    """What to do with the file of a table, for error messages."""
    return (
        f"Fill its gaps with `diffem impute {path} -o completed.csv`, or read it in Python, "
        "diffem.fit(frame, recipe='table', sigma=...)"
    )
