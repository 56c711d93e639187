"""k-space on a shelf: only the measured columns are kept, in memory or in files that are read part by part.

24,853 slices of 320×320 are 20 GB of k-space as float32; their measured columns at R = 6 are 3.4 GB, and a shard of them is read in a
moment. A folder on disk holds raw little-endian arrays and `shelf.json`, which is written last and says what is in it and where it came
from; a folder without it was interrupted and is made again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files.rows import RowsInFile
from ..files.writing import file_digest, read_json, write_json
from ..linalg import Isotropic
from ..observations import Observations
from ..observations.lazy import StoredObservations
from ..operators import Fourier
from .kspace import operator, put_columns

FORMAT = "diffem-kspace-1"
DTYPES = {"columns": "<f4", "masks": "|b1", "sigma": "<f8", "coils": "<f4", "reference": "<f4"}


@dataclass
class Slices:
    """Some consecutive slices, measured.

    columns: `(columns, ..., H, 2)`, see `take_columns`; masks: `(m, W)`; sigma: `(m,)`; coils: `(m, c, H, W, 2)` or none;
    reference: the images behind them, `(m, 1 or 2, H, W)`, where they are known.
    """

    columns: Tensor
    masks: Tensor
    sigma: Tensor
    coils: Tensor | None = None
    reference: Tensor | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        named = {name: getattr(self, name) for name in DTYPES}
        return {
            name: np.ascontiguousarray(tensor.numpy(), dtype=DTYPES[name])
            for name, tensor in named.items()
            if tensor is not None
        }


class KspaceShelf:
    """The arrays of many slices (see `Slices`), in memory or, but for masks and noise levels, in files."""

    def __init__(
        self, arrays: Mapping[str, np.ndarray | RowsInFile], complex: bool, digest: str, on_disk: bool
    ) -> None:
        self.arrays, self.complex, self.digest, self.on_disk = arrays, complex, digest, on_disk
        self.masks, self.sigma = np.asarray(arrays["masks"]), np.asarray(arrays["sigma"])
        self.ends = np.cumsum(self.masks.sum(1, dtype=np.int64))
        height, width = arrays["columns"].shape[-2], self.masks.shape[1]
        self.x_shape: tuple[int, ...] = (2 if complex else 1, height, width)

    def __len__(self) -> int:
        return len(self.masks)

    def read(self, rows: Tensor) -> Observations:
        wanted, columns = rows.numpy(), self.arrays["columns"]
        masks = torch.from_numpy(self.masks[wanted])
        starts, ends = np.concatenate([[0], self.ends])[wanted], self.ends[wanted]
        lead = columns.shape[1:-2]
        y = torch.empty(len(wanted), *lead, columns.shape[-2], masks.shape[1], 2)
        for some in torch.arange(len(wanted)).split(16):  # a second copy of a few slices, not of all
            values = columns[np.concatenate([np.arange(starts[i], ends[i]) for i in some])]
            y[some[0] : some[-1] + 1] = put_columns(torch.from_numpy(values), masks[some])
        sigma = torch.from_numpy(self.sigma[wanted])
        same = bool((sigma == sigma[0]).all())
        return Observations(y, self.operators(rows), sigma=float(sigma[0]) if same else sigma)

    def counts(self, rows: Tensor) -> Tensor:
        measured = self.masks[rows.numpy()].sum(1, dtype=np.int64)
        return torch.from_numpy(measured) * math.prod(self.arrays["columns"].shape[1:])

    def operators(self, rows: Tensor) -> Fourier:
        wanted, coils = rows.numpy(), self.arrays.get("coils")
        maps = None if coils is None else torch.from_numpy(coils[wanted])
        return operator(torch.from_numpy(self.masks[wanted]), maps, self.complex)

    def noise(self, rows: Tensor) -> Isotropic:
        sigma = torch.from_numpy(self.sigma[rows.numpy()]).double()
        return Isotropic(sigma**2).to(torch.float32)

    def observations(self) -> Observations:
        """All of them: in memory if the shelf is, read as they are used otherwise."""
        return StoredObservations(self) if self.on_disk else self.read(torch.arange(len(self)))

    @property
    def reference(self) -> Tensor | None:
        """The images behind the observations, `(n, 1 or 2, H, W)`; from files, pages are read as they are used."""
        images = self.arrays.get("reference")
        return None if images is None else _as_tensor(np.asarray(images))


def _as_tensor(array: np.ndarray) -> Tensor:
    import warnings

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)  # mapped read-only: nobody writes into a reference


MEMORY = 3 << 29  # bytes of k-space kept in memory without being asked to use files


def shelve(
    parts: Iterator[Slices], complex: bool, size: int, cache: str | None, made_from: dict[str, Any]
) -> KspaceShelf:
    """A shelf in memory when its k-space takes up to 1.5 GiB, on disk when it takes more or `cache` names a folder.

    size: bytes of the k-space with every column. made_from: all that the measurements depend on, as JSON values.
    """
    if cache is None and size <= MEMORY:
        return in_memory(parts, complex)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffem"
    return on_disk(parts, complex, Path(cache) if cache is not None else home, made_from)


def in_memory(parts: Iterator[Slices], complex: bool) -> KspaceShelf:
    """A shelf in memory."""
    lists: dict[str, list[np.ndarray]] = {}
    for part in parts:
        for name, array in part.arrays().items():
            lists.setdefault(name, []).append(array)
    arrays = {name: np.concatenate(pieces) for name, pieces in lists.items()}
    digests = {name: hashlib.sha256(array.data).hexdigest() for name, array in arrays.items()}
    return KspaceShelf(arrays, complex, _combine(digests), on_disk=False)


def on_disk(parts: Iterator[Slices], complex: bool, folder: Path, made_from: dict[str, Any]) -> KspaceShelf:
    """A shelf in `folder`: the one that is there if it was made from the same, else made part by part."""
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:16]
    target = folder / f"kspace-{key}"
    if (target / "shelf.json").is_file():
        return _open(target, made_from)
    partial = folder / f".kspace-{key}.{os.getpid()}.partial"
    files: dict[str, Any] = {}
    hashes: dict[str, Any] = {}
    shapes: dict[str, list[int]] = {}
    try:
        partial.mkdir(parents=True, exist_ok=True)
        for part in parts:
            for name, array in part.arrays().items():
                if name not in files:
                    files[name] = (partial / f"{name}.bin").open("wb")
                    hashes[name], shapes[name] = hashlib.sha256(), [0, *array.shape[1:]]
                if list(array.shape[1:]) != shapes[name][1:]:
                    raise InputError(f"slices differ in their {name}: {shapes[name][1:]} and {list(array.shape[1:])}")
                files[name].write(array.data)
                hashes[name].update(array.data)
                shapes[name][0] += len(array)
        for file in files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        digests = {name: h.hexdigest() for name, h in hashes.items()}
        description = {"format": FORMAT, "complex": complex, "shapes": shapes, "sha256": digests, "from": made_from}
        write_json(partial / "shelf.json", description)
        try:
            os.replace(partial, target)
        except OSError:  # another process was faster, or an interrupted move left something
            if not (target / "shelf.json").is_file():
                shutil.rmtree(target, ignore_errors=True)
                os.replace(partial, target)
    except OSError as error:
        raise InputError(f"data.cache: cannot write measurements under {folder}: {error}") from None
    finally:
        for file in files.values():
            file.close()
        shutil.rmtree(partial, ignore_errors=True)
    return _open(target, made_from, fresh=True)


def _open(folder: Path, made_from: dict[str, Any], fresh: bool = False) -> KspaceShelf:
    """The shelf in a folder, which must have been made from the same; fresh: just now, so checksums need not be compared."""
    description = read_json(folder / "shelf.json")
    try:
        if description["from"] != json.loads(json.dumps(made_from)):  # as JSON has it, tuples are lists
            raise InputError(f"{folder} holds measurements of other data; remove it")
        if description["format"] != FORMAT:
            raise InputError(f"{folder} has format {description['format']!r}, this version reads {FORMAT!r}")
        arrays: dict[str, np.ndarray | RowsInFile] = {}
        for name, shape in description["shapes"].items():
            file, dtype = folder / f"{name}.bin", np.dtype(DTYPES[name])
            if not all(isinstance(size, int) and size > 0 for size in shape):
                raise TypeError(f"shape {shape}")
            if file.stat().st_size != math.prod(shape) * dtype.itemsize:
                raise InputError(f"{file} is damaged: {file.stat().st_size} bytes for {shape}; remove {folder}")
            if not fresh and file_digest(file) != description["sha256"][name]:
                raise InputError(f"{file} is damaged: it does not match its checksum; remove {folder}")
            if name in ("columns", "coils"):
                arrays[name] = RowsInFile(file, dtype, tuple(shape), 0)
            elif name == "reference":  # for evaluation, which asks for a tensor
                arrays[name] = np.asarray(np.memmap(file, dtype, "r", shape=tuple(shape)))
            else:
                arrays[name] = np.fromfile(file, dtype).reshape(shape)
        return KspaceShelf(arrays, bool(description["complex"]), _combine(description["sha256"]), on_disk=True)
    except (KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        raise InputError(f"{folder} is not a folder of measurements ({error!r}); remove it") from None


def _combine(digests: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
