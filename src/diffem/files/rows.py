"""Rows of an array in a file, read as they are used: memory is taken for those rows and no others.

They are read, not mapped: pages of a mapped file count as memory of the process for as long as it is mapped, and a mapped file that is cut
short ends the process.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ..core.errors import InputError
from .reading import opened


class RowsInFile:
    """An array `(n, ...)` at `offset` bytes of a file, row after row; one without axes is one row.

    A file that is written to or replaced afterwards is refused: what was checked when it was opened would no longer hold.
    """

    def __init__(self, path: Path, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> None:
        self.path, self.dtype, self.shape, self.offset = path, np.dtype(dtype), tuple(shape), offset
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        with opened(path) as file:
            self._version = _version(file.fileno())

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    @property
    def nbytes(self) -> int:
        return self.row_bytes * len(self)

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """The rows `(m,)`, in that order: one call of the operating system for every run of consecutive ones."""
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
        with opened(self.path) as file:
            descriptor = file.fileno()
            if _version(descriptor) != self._version:
                raise InputError(f"{self.path} has changed since it was opened")
            for first, end, row in zip(starts.tolist(), ends.tolist(), rows[starts].tolist(), strict=True):
                _fill(descriptor, view[first * width : end * width], self.offset + row * width, self.path)
        return out

    def whole(self) -> np.ndarray:
        return self[:].reshape(self.shape)

    def blocks(self, size: int = 1 << 22) -> Iterator[np.ndarray]:
        """All rows, about `size` bytes at a time."""
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
    """What changes with a file's contents, as far as the operating system keeps account of it."""
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
