"""Rows of an array in a file, read when they are used, so that only these rows take memory.

The file is read and not memory-mapped. The pages of a mapped file count as memory of the process, and if a mapped file
is truncated, the next access kills the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.errors import InputError
from .reading import open_checked


class RowsInFile:
    """An array `(n, ...)` in row order at byte `offset` of a file. An array without axes has one row.

    The file is checked when it is opened. If it is modified or replaced afterwards, reading rows raises `InputError`.

    Attributes:
        path: The file.
        dtype: Type of the values.
        shape: Shape of the whole array.
        offset: Position of the first row in the file, in bytes.
        row_bytes: Size of one row in bytes.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> None:
        self.path, self.dtype, self.shape, self.offset = path, np.dtype(dtype), tuple(shape), offset
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        with open_checked(path) as file:
            self._version = _version(file.fileno())

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def nbytes(self) -> int:
        return self.row_bytes * len(self)

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Read the rows with the indices `(m,)`, in that order, with one system call per run of consecutive rows."""
        if isinstance(rows, slice):
            rows = np.arange(*rows.indices(len(self)))
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        if out.size == 0:
            return out
        if rows.min() < 0 or rows.max() >= len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of {len(self)}")
        starts = np.flatnonzero(np.diff(rows, prepend=rows[0] - 2) != 1)
        ends = np.append(starts[1:], len(rows))
        view, width = out.reshape(-1).view(np.uint8).data, self.row_bytes
        with open_checked(self.path) as file:
            descriptor = file.fileno()
            if _version(descriptor) != self._version:
                raise InputError(f"{self.path} has changed since it was opened")
            for first, end, row in zip(starts.tolist(), ends.tolist(), rows[starts].tolist(), strict=True):
                _fill(descriptor, view[first * width : end * width], self.offset + row * width, self.path)
        return out

    def whole(self) -> np.ndarray:
        """Read the whole array."""
        return self[:].reshape(self.shape)

    def blocks(self, size: int = 1 << 22) -> Iterator[np.ndarray]:
        """Iterate over all rows in blocks of about `size` bytes."""
        rows = max(1, size // max(1, self.row_bytes))
        for first in range(0, len(self), rows):
            yield self[first : first + rows]


def _fill(descriptor: int, view: memoryview, place: int, path: Path) -> None:
    while len(view):
        count = os.preadv(descriptor, [view], place)
        if count == 0:
            raise InputError(f"{path} ends before byte {place + len(view)}")
        view, place = view[count:], place + count


def _version(descriptor: int) -> tuple[int, ...]:
    """Device, inode, size and modification time: one of them changes when the file is modified or replaced."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
