"""fastMRI files as they are published (Zbontar et al. 2018): one HDF5 file per volume.

- `kspace`: complex, `(slices, H, W)` single-coil or `(slices, coils, H, W)` multi-coil, zero frequency in the middle.
- `reconstruction_esc` (single-coil) and `reconstruction_rss`: magnitude images, `(slices, h, w)`.
- `mask`: `(W,)`, in files that were measured with a mask.
- attribute `max`: the largest value of the volume's reconstruction.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files import memory, reading

ENTRIES = 256  # largest number of datasets of a file
RECONSTRUCTIONS = ("reconstruction_rss", "reconstruction_esc")


@contextmanager
def open_hdf5(path: Path) -> Iterator[Any]:
    """Open a file for reading; errors of HDF5 become an `InputError` that names the file."""
    try:
        import h5py
    except ImportError:
        raise InputError("reading fastMRI files needs h5py: pip install 'diffem[data]'") from None
    with reading.open_checked(path):
        pass  # raises if it is not a regular file, or a sparse one
    try:
        file = h5py.File(path, "r")
    except (OSError, RuntimeError) as error:
        reason = "it is truncated" if "truncated" in str(error) else f"it is not an HDF5 file ({error})"
        raise InputError(f"{path} cannot be read: {reason}") from None
    with file:
        try:
            yield file
        except InputError:
            raise
        except (OSError, RuntimeError, KeyError, TypeError, ValueError, MemoryError) as error:
            raise InputError(f"{path} cannot be read: {error}") from error


def datasets(file: Any, path: Path) -> dict[str, Any]:
    """The datasets in the file, by name.

    Raises:
        InputError: If a dataset lies in another file, which HDF5 allows, or claims much more memory than the file has.
    """
    import h5py

    if len(file) > ENTRIES:
        raise InputError(f"{path} must have at most {ENTRIES} entries, got {len(file)}")
    found = {}
    for name in list(file):
        if not isinstance(file.get(name, getlink=True), h5py.HardLink):
            raise InputError(f"{path}: {name} is a link; only data inside the file are read")
        item = file[name]
        if not isinstance(item, h5py.Dataset) or item.shape is None:
            continue
        if item.external or item.is_virtual:
            raise InputError(f"{path}: {name} has its data in other files; only data inside the file are read")
        # unwritten chunks need no space in the file, but all of their memory when they are read
        reading.require_substance(item.size * item.dtype.itemsize, item.id.get_storage_size(), f"{path}: {name}")
        found[name] = item
    return found


class Volume:
    """One file, and the range of its slices that is used.

    Args:
        slices: Range [first, last) of slices; it is limited to those of the file.

    Raises:
        InputError: If it is not a valid fastMRI file.
    """

    def __init__(self, path: Path, slices: tuple[int, int | None]) -> None:
        self.path = path
        with open_hdf5(path) as file:
            items = datasets(file, path)
            self.names = {name: tuple(item.shape) for name, item in items.items()}
            maximum = file.attrs.get("max")
            kinds = {name: item.dtype.kind for name, item in items.items()}
        if not {"kspace", *RECONSTRUCTIONS} & self.names.keys():
            found = ", ".join(self.names) or "nothing"
            raise InputError(
                f"{path} is not a fastMRI file: it needs kspace or {' or '.join(RECONSTRUCTIONS)}, it contains {found}"
            )
        try:
            self.maximum = None if maximum is None else float(maximum)
        except (TypeError, ValueError):
            raise InputError(f"{path}: attribute max must be a number, got {str(maximum)[:80]!r}") from None
        if self.maximum is not None and not (np.isfinite(self.maximum) and self.maximum > 0):
            raise InputError(f"{path}: attribute max must be positive and finite, got {self.maximum}")
        if "kspace" in self.names and (kinds["kspace"] != "c" or len(self.names["kspace"]) not in (3, 4)):
            raise InputError(
                f"{path}: kspace must be complex of shape (slices, H, W) or (slices, coils, H, W), "
                f"got kind {kinds['kspace']!r} of shape {self.names['kspace']}"
            )
        for name in RECONSTRUCTIONS:
            if name in self.names and (kinds[name] != "f" or len(self.names[name]) != 3):
                raise InputError(f"{path}: {name} must be real of shape (slices, h, w), got {self.names[name]}")
        depths = {name: shape[0] for name, shape in self.names.items() if name in ("kspace", *RECONSTRUCTIONS)}
        if len(set(depths.values())) > 1:
            raise InputError(f"{path}: the datasets differ in their number of slices: {depths}")
        depth = next(iter(depths.values()))
        self.first, self.last = min(slices[0], depth), depth if slices[1] is None else min(slices[1], depth)

    def __len__(self) -> int:
        return self.last - self.first

    @property
    def coils(self) -> int | None:
        """Number of coils; None for single-coil files."""
        return self.names["kspace"][1] if len(self.names["kspace"]) == 4 else None

    def reconstruction(self, wanted: str) -> str:
        """Name of the dataset of magnitude images: `wanted`, or for "auto" the first that the file contains."""
        for name in RECONSTRUCTIONS if wanted == "auto" else (wanted,):
            if name in self.names:
                return name
        raise InputError(
            f"{self.path} has no {wanted if wanted != 'auto' else 'reconstruction'}, only {', '.join(self.names)}; "
            "data.image names the reconstruction to use"
        )

    def require_kspace(self) -> tuple[int, ...]:
        """Shape of the k-space; raises `InputError` if the file has none."""
        if "kspace" not in self.names:
            raise InputError(f"{self.path} has no kspace, only {', '.join(self.names)}")
        return self.names["kspace"]

    def read(self, name: str, first: int, last: int) -> np.ndarray:
        """Read slices first … last − 1 of a dataset; raises `InputError` if they are not finite."""
        with open_hdf5(self.path) as file:
            item = datasets(file, self.path)[name]
            if item.dtype.kind not in "fc":
                raise InputError(f"{self.path}: {name} must contain real or complex numbers, got {item.dtype}")
            memory.require(math.prod(item.shape[1:]) * (last - first) * item.dtype.itemsize, f"{self.path}: {name}")
            array = np.asarray(item[first:last])
        if not np.isfinite(array).all():
            raise InputError(
                f"{self.path}: {name} contains values that are not finite, in slices {first} to {last - 1}"
            )
        return array

    def kspace(self, first: int, last: int) -> Tensor:
        """k-space of slices first … last − 1, `(m, c, H, W)`; one coil for single-coil files."""
        kspace = torch.from_numpy(self.read("kspace", first, last).astype(np.complex64))
        return kspace if self.coils else kspace.unsqueeze(1)

    @property
    def reconstructed(self) -> tuple[int, int] | None:
        """Height and width of the reconstruction in the file; None if it has none."""
        shapes = [self.names[name] for name in RECONSTRUCTIONS if name in self.names]
        return (shapes[0][-2], shapes[0][-1]) if shapes else None

    def mask(self) -> np.ndarray | None:
        """The mask of measured columns in the file, `(W,)`; None if there is none."""
        if "mask" not in self.names:
            return None
        with open_hdf5(self.path) as file:
            item = datasets(file, self.path)["mask"]
            if item.size != self.names["kspace"][-1] or item.dtype.kind not in "biuf":
                raise InputError(
                    f"{self.path}: mask must have {self.names['kspace'][-1]} columns like kspace, "
                    f"got {item.size} of {item.dtype}"
                )
            return np.asarray(item).reshape(-1).astype(bool)

    def identity(self) -> list[Any]:
        """Name, size and modification time of the file, and the range of slices; part of the cache key."""
        state = self.path.stat()
        return [self.path.name, state.st_size, state.st_mtime_ns, self.first, self.last]


def volumes(path: str, slices: tuple[int, int | None], files: tuple[int, int | None]) -> list[Volume]:
    """Volumes of a folder, or of one file, sorted by name.

    Args:
        path: The folder or file.
        slices: Range [first, last) of slices; volumes without any of them are skipped.
        files: Range [first, last) of files.

    Raises:
        InputError: If there is no volume.
    """
    folder = Path(path)
    if folder.is_file():
        found = [folder]
    elif folder.is_dir():
        found = sorted(folder.glob("*.h5"))[files[0] : files[1]]
    else:
        raise InputError(f"data.path: no folder or file at {path!r}")
    if not found:
        raise InputError(
            f"data.path: no *.h5 files in {path!r}" + (f" in the range {files}" if files != (0, None) else "")
        )
    kept = [volume for volume in (Volume(file, slices) for file in found) if len(volume) > 0]
    if not kept:
        raise InputError(f"data.slices: no volume in {path!r} has slices {slices[0]} to {slices[1]}")
    return kept


def parse_range(value: Any, name: str) -> tuple[int, int | None]:
    """Validate a range [first, last) of integers, the second of which may be None."""
    ok = isinstance(value, list | tuple) and len(value) == 2 and isinstance(value[0], int) and value[0] >= 0
    if not ok or not (value[1] is None or (isinstance(value[1], int) and value[1] > value[0])):
        raise InputError(f"data.{name} must be a range [first, last) such as [10, 40] or [10, null], got {value!r}")
    return value[0], value[1]
