"""Read numeric arrays from `.npy` and `.npz` files.

The size that a header claims is compared with the size of the file before memory is allocated.
"""

from __future__ import annotations

import hashlib
import io
import math
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import numpy as np

from ..core.counting import count_of
from ..core.errors import InputError
from . import memory
from .reading import BLOCK, open_checked, require_substance, size_of
from .rows import RowsInFile

MEMBERS = 1024  # largest number of arrays in an .npz


def read_array(path: Path, sha256: str | None = None) -> np.ndarray:
    """Read a `.npy` file.

    Args:
        path: The file.
        sha256: The expected hash of the file. Default: the hash is not checked.

    Returns:
        The array.

    Raises:
        InputError: If the file is damaged, does not contain numbers, or needs more memory than is available.
    """
    hashed = hashlib.sha256()
    with open_checked(path) as file:
        array = _read(file, size_of(file), str(path), hashed.update)
    if sha256 is not None and hashed.hexdigest() != sha256:
        raise InputError(f"{path} is damaged: its contents do not match their checksum")
    return array


def array_of(data: bytes, name: str) -> np.ndarray:
    """Read an array from the bytes of a `.npy` file; name: name of the file in error messages."""
    return _read(io.BytesIO(data), len(data), name)


def read_arrays(path: Path, *names: str, also: tuple[str, ...] = ()) -> dict[str, np.ndarray]:
    """Read arrays from an `.npz` file; nothing is unpacked to disk.

    Args:
        path: The file.
        names: Names of arrays, of which the file must contain at least one. Default: all arrays of the file.
        also: Names of optional arrays.

    Returns:
        The arrays among `names` and `also` that the file contains, by name.

    Raises:
        InputError: If the file contains none of `names`, or cannot be read.
    """
    try:
        with open_checked(path) as file, zipfile.ZipFile(file) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            if len(members) > MEMBERS:
                raise InputError(f"{path} holds {len(members)} arrays, the limit is {MEMBERS}")
            selected = [name for name in names or members if name in members]
            if not selected:
                found = ", ".join(list(members)[:8])[:200] or "no named arrays"
                raise InputError(f"{path} holds {found}; needed: an array {' or '.join(map(repr, names))}")
            selected += [name for name in also if name in members]
            return {name: _member(archive, members[name], f"{path}: {name}") for name in selected}
    except InputError:
        raise
    except Exception as error:  # damaged archives raise many kinds of exceptions, all caused by the file
        raise InputError(f"{path} cannot be read as an .npz: {error}") from error


def _member(archive: zipfile.ZipFile, info: zipfile.ZipInfo, name: str) -> np.ndarray:
    require_substance(info.file_size, info.compress_size, name)
    with archive.open(info) as file:
        array = _read(file, info.file_size, name)  # type: ignore[arg-type]
        file.read(1)  # zipfile checks the CRC when it reaches the end of the member
    return array


def array_rows(path: Path) -> RowsInFile:
    """Open a `.npy` file whose rows are read when they are used.

    Raises:
        InputError: If the header is invalid, or the array has no axes or is stored in column order.
    """
    with open_checked(path) as file:
        start = _Start(file)
        shape, fortran, dtype = _header(start, size_of(file), str(path))
    if fortran or not shape:
        raise InputError(
            f"{path} holds an array of shape {_short(shape)} whose rows are not stored one after the other"
        )
    return RowsInFile(path, dtype, shape, len(start.seen))


def _header(start: _Start, size: int, name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Read the header of an array in a file of `size` bytes: its shape, whether it is in Fortran order, its dtype."""
    try:
        if size < 8:
            raise ValueError(f"it has only {count_of(size, 'byte')}")
        version = np.lib.format.read_magic(start)
        if version not in ((1, 0), (2, 0)):
            raise ValueError(f"format version {version}")
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read_header(start)
    except Exception as error:  # an invalid header raises many kinds of exceptions, all caused by the file
        raise InputError(f"{name} cannot be read as an array: {_first_line(error)}") from None
    if dtype.hasobject or dtype.kind not in "biufc" or dtype.subdtype is not None:
        raise InputError(
            f"{name} cannot be read as an array: it holds {str(dtype)[:80]}, not numbers; objects are never read, "
            "because they could execute code"
        )
    if any(n < 0 for n in shape) or len(shape) > 32:
        raise InputError(f"{name} claims an array of shape {_short(shape)}")
    claimed, held = math.prod(shape) * dtype.itemsize, size - len(start.seen)
    if claimed != held:
        raise InputError(
            f"{name} cannot be read as an array: {dtype} of shape {_short(shape)} takes {claimed} bytes, "
            f"the file holds {held}"
        )
    return shape, fortran, dtype


def _read(file: BinaryIO, size: int, name: str, hashed: Callable[[bytes], None] | None = None) -> np.ndarray:
    """Read one array from an open file of `size` bytes; hashed: called with every block of the file."""
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
    """A reader that records the bytes it has read, so that they can be counted and hashed."""

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
