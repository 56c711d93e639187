"""Observations from files: those of `Observations.save`, and arrays of measured values with their noise level.

Observations above the memory budget stay in their file and are read when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..files import memory
from ..files.arrays import read_array
from ..files.reading import open_checked, size_of
from ..files.rows import RowsInFile
from ..files.tensors import explain, require_finite, tensor_rows
from ..linalg import Covariance
from ..linalg.saved import rebuild_covariance
from ..operators import Operator
from ..operators.saved import rebuild_operator, require_affordable
from .batches import scanned_together
from .lazy import LazyObservations
from .observations import FORMAT, Observations, require_repeats

TABLES = (".csv", ".tsv", ".txt", ".xlsx", ".parquet")
FOREIGN = (  # files of arrays and images that users may try
    *(".npz", ".h5", ".hdf5", ".nc", ".fits", ".fit", ".mat", ".nii", ".gz", ".dcm", ".pt", ".pth", ".pkl"),
    *(".png", ".jpg", ".jpeg", ".tif", ".tiff"),
)


def read_observations(path: Path, sigma: Any = None) -> Observations:
    """Read observations; this executes no code.

    Args:
        path: A file of `Observations.save`; or a `.npy` array `(n, *event)` of direct measurements of x, NaN for values
            that were not measured.
        sigma: The noise level of an array, as `Observations` accepts it.

    Raises:
        InputError: If the file cannot be read, or `sigma` is missing, or given twice.
    """
    with open_checked(path) as file:  # a missing file is an error before its kind is
        is_saved = file.read(9)[8:] == b"{"  # of a header in JSON: `Observations.save` accepts any name
    if path.suffix in TABLES:
        raise InputError(f"{path} is a table. {about_table(path)}")
    if path.suffix in FOREIGN and not is_saved:
        raise InputError(
            f"{path} is neither a .npy array nor a file of Observations.save: read it in Python and pass "
            "Observations(y, A, sigma=...) to diffem.fit, or save it with np.save, or these observations with save"
        )
    if path.suffix != ".npy":
        if sigma is not None:
            raise InputError(
                f"sigma is for .npy files only: {path} must be a file of Observations.save, which contains its noise "
                "level"
            )
        return Observations.load(path)
    if sigma is None:
        raise InputError(f"{path} is an array: give its noise level too (--sigma 0.1; in a recipe data.sigma)")
    return Observations(read_array(path), sigma=sigma)


def about_table(path: Path) -> str:
    """What to do with the file of a table, for error messages."""
    return (
        f"Fill its gaps with `diffem impute {path} -o completed.csv`, or read it in Python, "
        "diffem.fit(frame, recipe='table', sigma=...)"
    )


def open_large(path: Path) -> LazyObservations | None:
    """Open a file lazily. None if it is within the memory budget or its observations cannot be read separately.

    All observations are read once, part by part, with the same checks as for a small file.
    """
    with open_checked(path) as file:
        if memory.may_stay(size_of(file)):
            return None
    rows, structure = tensor_rows(path, "an observations file")
    if structure.get("format") != FORMAT or "y" not in rows:
        return None
    try:
        source = FileSource(path, rows, structure)
    except Exception:  # read as a whole, which reports errors of the file
        return None
    if not source.separable:
        return None
    first = 0
    try:
        obs = LazyObservations(source)
        for part in torch.arange(len(source)).split(scanned_together(obs)):
            first = int(part[0])
            source.read(part)
        return obs
    except Exception as error:  # any error from a description is an error of the file
        where = f" (observations from {first} on)" if first else ""
        raise InputError(
            f"{path} is not an observations file of this library, or is damaged: {explain(error)}{where}"
        ) from error


class FileSource:
    """The observations of a file. Shared parameters are kept in memory, the others are read when used."""

    digest = None  # hashed by their contents, like observations in memory

    def __init__(self, path: Path, rows: dict[str, RowsInFile], structure: dict[str, Any]) -> None:
        self.path, self._structure, self.adaptive = path, structure, structure.get("adaptive", False)
        n = rows["y"].shape[:1]
        self._rows = {name: array for name, array in rows.items() if array.shape[:1] == n}
        self._shared = {name: torch.from_numpy(rows[name].whole()) for name in rows.keys() - self._rows.keys()}
        require_finite(self._shared, path)
        tensors = self._tensors(torch.zeros(1, dtype=torch.int64), self._rows)
        require_affordable(rebuild_operator(structure["A"], "A", tensors), tensors["y"])
        one = self._observations(tensors)
        self.x_shape, self.dtype, self.y_ndim = one.x_shape, one.y.dtype, one.y.ndim - 1
        # ambiguous if a shared parameter has as many rows as there are observations
        self.separable = one.per_observation() == self._rows.keys()

    def __len__(self) -> int:
        return len(self._rows["y"])

    def read(self, rows: Tensor) -> Observations:
        return self._observations(self._tensors(rows, self._rows))

    def operators(self, rows: Tensor) -> Operator:
        tensors = self._tensors(rows, [name for name in self._rows if name.startswith("A.")])
        A = rebuild_operator(self._structure["A"], "A", tensors)
        return A.resolve_axes(torch.zeros(1, *self.x_shape, dtype=self.dtype))

    def noise(self, rows: Tensor) -> Covariance:
        tensors = self._tensors(rows, [name for name in self._rows if name.startswith("cov.")])
        return rebuild_covariance(self._structure["cov"], tensors).bind(self.y_ndim).to(self.dtype)

    def _tensors(self, rows: Tensor, names: Iterable[str]) -> dict[str, Tensor]:
        wanted = rows.numpy()
        read = {name: torch.from_numpy(self._rows[name][wanted]) for name in names}
        # unmeasured entries of y may have any value
        require_finite({name: tensor for name, tensor in read.items() if name != "y"}, self.path)
        return self._shared | read

    def _observations(self, tensors: dict[str, Tensor]) -> Observations:
        A = rebuild_operator(self._structure["A"], "A", tensors)
        cov = rebuild_covariance(self._structure["cov"], tensors)
        obs = Observations(tensors["y"], A, cov=cov, adaptive=self.adaptive)
        obs.repeats = require_repeats(tensors, len(obs))
        return obs
