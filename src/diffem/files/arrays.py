"""Arrays of numbers from `.npy` and `.npz` files. What a header claims must be what the file holds, before memory is taken for it."""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.errors import InputError
from . import memory
from .reading import BLOCK, opened, require_substance, size_of
from .rows import RowsInFile

MEMBERS = 1024  # arrays of an .npz, at most


def read_array(path: Path, sha256: str | None = None) -> np.ndarray:
    """The array in a `.npy`; sha256: what the file's hash must be."""
    hashed = hashlib.sha256()
    with opened(path) as file:
        array = _read(file, size_of(file), str(path), hashed.update)
    if sha256 is not None and hashed.hexdigest() != sha256:
        raise InputError(f"{path} is damaged: its contents do not match their checksum")
    return array


def array_of(data: bytes, name: str) -> np.ndarray:
    """The array in a `.npy` that is not on disk; name: what messages call it."""
    return _read(io.BytesIO(data), len(data), name)


def read_arrays(path: Path, *names: str, also: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Those of the arrays `names`, one at least, and `also` that an `.npz` holds; all when none is named. Nothing is unpacked to disk."""
    try:
        with opened(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) > MEMBERS:
                raise InputError(f"{path} holds {len(members)} arrays, at most {MEMBERS} make sense here")
            wanted = [name for name in names or members if name in members]
            if not wanted:
                found = ", ".join(list(members)[:8])[:200] or "no named arrays"
                raise InputError(f"{path} holds {found}; needed: an array {' or '.join(map(repr, names))}")
            wanted += [name for name in also if name in members]
            return {name: _member(archive, members[name], f"{path}: {name}") for name in wanted}
    except InputError:
        raise
    except Exception as error:  # a damaged archive fails in many ways, and every one is about the file
        raise InputError(f"{path} cannot be read as an .npz: {error}") from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> np.ndarray:
    require_substance(info.file_size, info.compress_size, name)
    with archive.open(info) as file:
        array = _read(file, info.file_size, name)  # type: ignore[arg-type]
        file.read(1)  # at the end the archive compares its own checksum
    return array


def array_rows(path: Path) -> RowsInFile:
    """The array in a `.npy`, of which rows are read as they are used."""
    with opened(path) as file:
        start = _Start(file)
        shape, fortran, dtype = _header(start, size_of(file), str(path))
    if fortran or not shape:
        raise InputError(
            f"{path} holds an array of shape {_short(shape)} whose rows are not stored one after the other"
        )
    return RowsInFile(path, dtype, shape, len(start.seen))


def _header(start: _Start, size: int, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether columns come first, and type of an array in a file of `size` bytes, compared with that size."""
    try:
        version = np.lib.format.read_magic(start)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"format version {version}")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(start)
    except Exception as error:  # whatever the header's text provokes is about the file
        raise InputError(f"{name} cannot be read as an array: {_first_line(error)}") from None
    if dtype.hasobject or dtype.kind not in "biufc" or dtype.subdtype is not None:
        raise InputError(
            f"{name} cannot be read as an array: it holds {str(dtype)[:80]}, not numbers; objects are never read, they could execute code"
        )
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise InputError(f"{name} claims an array of shape {_short(shape)}")
    claimed, held = math.prod(shape) * dtype.itemsize, size - len(start.seen)
    if claimed != held:
        raise InputError(
            f"{name} cannot be read as an array: {dtype} of shape {_short(shape)} takes {claimed} bytes, the file holds {held}"
        )
    return shape, fortran, dtype


def _read(file: BinaryIO, size: int, name: str, hashed: Callable[[bytes], None] | None = None) -> np.ndarray:
    """One array from an open file of `size` bytes."""
    start = _Start(file)
    shape, fortran, dtype = _header(start, size, name)
    claimed = math.prod(shape) * dtype.itemsize
    memory.require(claimed, name)
    array = np.empty(math.prod(shape), dtype)
    view, place = array.data.cast("B") if array.size else memoryview(b""), 0
    if hashed is not None:
        hashed(bytes(start.seen))
    while place < claimed:
        count = file.readinto(view[place : place + BLOCK])  # type: ignore[attr-defined]
        if not count:
            raise InputError(f"{name} cannot be read as an array: it ends after {place} of {claimed} bytes")
        if hashed is not None:
            hashed(view[place : place + count])  # type: ignore[arg-type]
        place += count
    return array.reshape(shape, order="F" if fortran else "C")


class _Start:
    """The beginning of a file, remembered as it is read."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.seen = file, bytearray()

    def read(self, count: int = 0, /) -> bytes:
        data = self.file.read(min(count, 1 << 16))
        self.seen += data
        return data


def _short(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [repr(error)])[0][:200]
