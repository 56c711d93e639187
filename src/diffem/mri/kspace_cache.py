"""A cache of measured k-space columns, in memory or on disk.

24,853 slices of 320×320 are 20 GB of k-space in float32; their measured columns at R = 6 are 3.4 GB. A cache folder
contains raw little-endian arrays and `shelf.json`, which describes them and the data they were computed from. This file
is written last: a folder without it is incomplete and is computed again.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files.reading import file_digest, read_json
from ..files.rows import RowsInFile
from ..files.writing import cache_folder, write_json
from ..linalg import Isotropic
from ..observations import Observations
from ..observations.lazy import LazyObservations
from ..operators import Fourier
from .kspace import operator, put_columns

FORMAT = "diffem-kspace-1"
MEMORY = 3 << 29  # bytes; more k-space is cached on disk
DTYPES = {"columns": "<f4", "masks": "|b1", "sigma": "<f8", "coils": "<f4", "reference": "<f4"}


@dataclass
class Slices:
    """The measurements of m consecutive slices.

    Attributes:
        columns: `(columns, ..., H, 2)`. The measured columns, in the order of `take_columns`.
        masks: `(m, W)`. True in measured columns.
        sigma: `(m,)`. Noise level of real and imaginary parts.
        coils: `(m, c, H, W, 2)`. Coil maps, or None for a single coil.
        reference: `(m, 1 or 2, H, W)`. The true images, if they are known.
    """

    columns: Tensor
    masks: Tensor
    sigma: Tensor
    coils: Tensor | None = None
    reference: Tensor | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        """The tensors that are present, by name, in the types of the cache."""
        named = {name: getattr(self, name) for name in DTYPES}
        return {
            name: np.ascontiguousarray(tensor.numpy(), dtype=DTYPES[name])
            for name, tensor in named.items()
            if tensor is not None
        }


class KspaceCache:
    """Lazily read observations of all slices.

    Args:
        arrays: The arrays of `Slices` for all slices, in memory or in files; masks and noise levels are in memory.
        complex: Whether images are complex.
        digest: Hash of all arrays, in hexadecimal.
        on_disk: Whether columns and coil maps are in files.
    """

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
        """Read the observations at `rows`, `(m,)`."""
        requested, columns = rows.numpy(), self.arrays["columns"]
        masks = torch.from_numpy(self.masks[requested])
        starts, ends = np.concatenate([[0], self.ends])[requested], self.ends[requested]
        lead = columns.shape[1:-2]
        y = torch.empty(len(requested), *lead, columns.shape[-2], masks.shape[1], 2)
        for some in torch.arange(len(requested)).split(16):  # limits the temporary copy to a few slices
            values = columns[np.concatenate([np.arange(starts[i], ends[i]) for i in some])]
            y[some[0] : some[-1] + 1] = put_columns(torch.from_numpy(values), masks[some])
        sigma = torch.from_numpy(self.sigma[requested])
        same = bool((sigma == sigma[0]).all())
        return Observations(y, self.operators(rows), sigma=float(sigma[0]) if same else sigma)

    def counts(self, rows: Tensor) -> Tensor:
        """Number of measured values of each observation, `(m,)`."""
        measured = self.masks[rows.numpy()].sum(1, dtype=np.int64)
        return torch.from_numpy(measured) * math.prod(self.arrays["columns"].shape[1:])

    def operators(self, rows: Tensor) -> Fourier:
        """The operator of the observations at `rows`."""
        requested, coils = rows.numpy(), self.arrays.get("coils")
        maps = None if coils is None else torch.from_numpy(coils[requested])
        return operator(torch.from_numpy(self.masks[requested]), maps, self.complex)

    def noise(self, rows: Tensor) -> Isotropic:
        """The noise covariance of the observations at `rows`."""
        sigma = torch.from_numpy(self.sigma[rows.numpy()]).double()
        return Isotropic(sigma**2).to(torch.float32)

    def observations(self) -> Observations:
        """All observations: in memory if the cache is, otherwise read on demand."""
        return LazyObservations(self) if self.on_disk else self.read(torch.arange(len(self)))

    @property
    def reference(self) -> Tensor | None:
        """The true images, `(n, 1 or 2, H, W)`, if they are known; a cache on disk maps them into memory."""
        images = self.arrays.get("reference")
        return None if images is None else _as_tensor(np.asarray(images))


def _as_tensor(array: np.ndarray) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)  # mapped read-only, and never written to


def cache_kspace(
    parts: Iterator[Slices], complex: bool, size: int, cache: str | None, made_from: dict[str, Any]
) -> KspaceCache:
    """Cache measured columns: in memory up to 1.5 GiB of k-space; on disk beyond that, or if `cache` is given.

    Args:
        complex: Whether images are complex.
        size: Bytes of the k-space with all columns.
        cache: The cache folder. Default: `cache_folder()`.
        made_from: Everything the measurements depend on, as JSON values; the key of the cache.
    """
    if cache is None and size <= MEMORY:
        return in_memory(parts, complex)
    return on_disk(parts, complex, cache_folder() if cache is None else Path(cache), made_from)


def in_memory(parts: Iterator[Slices], complex: bool) -> KspaceCache:
    """Build a cache in memory."""
    lists: dict[str, list[np.ndarray]] = {}
    for part in parts:
        for name, array in part.arrays().items():
            lists.setdefault(name, []).append(array)
    arrays = {name: np.concatenate(pieces) for name, pieces in lists.items()}
    digests = {name: hashlib.sha256(array.data).hexdigest() for name, array in arrays.items()}
    return KspaceCache(arrays, complex, _combine(digests), on_disk=False)


def on_disk(parts: Iterator[Slices], complex: bool, folder: Path, made_from: dict[str, Any]) -> KspaceCache:
    """Open the cache in `folder` if it was built from the same data; otherwise build it, a few slices at a time.

    Raises:
        InputError: If the folder cannot be written, or the cache in it is damaged.
    """
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
                    raise InputError(
                        f"{name} of all slices must have one shape, got {shapes[name][1:]} and {list(array.shape[1:])}"
                    )
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
        except OSError:  # another process has built the cache, or an interrupted move left files
            if not (target / "shelf.json").is_file():
                shutil.rmtree(target, ignore_errors=True)
                os.replace(partial, target)
    except OSError as error:
        raise InputError(f"data.cache: cannot write k-space under {folder}: {error}") from None
    finally:
        for file in files.values():
            file.close()
        shutil.rmtree(partial, ignore_errors=True)
    return _open(target, made_from, fresh=True)


def _open(folder: Path, made_from: dict[str, Any], fresh: bool = False) -> KspaceCache:
    """Open the cache in a folder.

    Args:
        made_from: The key that the cache must have.
        fresh: Skip the verification of checksums, for a cache that was just built.
    """
    description = read_json(folder / "shelf.json")
    try:
        if description["from"] != json.loads(json.dumps(made_from)):  # JSON turns tuples into lists
            raise InputError(f"{folder} is a cache of other data; remove it")
        if description["format"] != FORMAT:
            raise InputError(f"{folder} has format {description['format']!r}, this version reads {FORMAT!r}")
        arrays: dict[str, np.ndarray | RowsInFile] = {}
        for name, shape in description["shapes"].items():
            file, dtype = folder / f"{name}.bin", np.dtype(DTYPES[name])
            if not all(isinstance(size, int) and size > 0 for size in shape):
                raise TypeError(f"shape {shape}")
            if file.stat().st_size != math.prod(shape) * dtype.itemsize:
                raise InputError(f"{file} is damaged: {file.stat().st_size} bytes for shape {shape}; remove {folder}")
            if not fresh and file_digest(file) != description["sha256"][name]:
                raise InputError(f"{file} is damaged: its contents do not match their checksum; remove {folder}")
            if name in ("columns", "coils"):
                arrays[name] = RowsInFile(file, dtype, tuple(shape), 0)
            elif name == "reference":  # evaluation needs a tensor
                arrays[name] = np.asarray(np.memmap(file, dtype, "r", shape=tuple(shape)))
            else:
                arrays[name] = np.fromfile(file, dtype).reshape(shape)
        return KspaceCache(arrays, bool(description["complex"]), _combine(description["sha256"]), on_disk=True)
    except (KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        raise InputError(f"{folder} is not a k-space cache ({error!r}); remove it") from None


def _combine(digests: dict[str, str]) -> str:
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()
