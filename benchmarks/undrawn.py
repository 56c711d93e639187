"""Reports without pictures, because matplotlib would take most of the time of a small run.

Figures have no axes, and every PNG of matplotlib is a single white pixel. The rest of a report is unchanged.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np


def _chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


ONE_PIXEL = (
    b"\x89PNG\r\n\x1a\n"
    + _chunk(b"IHDR", (1).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0]))
    + _chunk(b"IDAT", zlib.compress(b"\0\xff"))
    + _chunk(b"IEND", b"")
)


class NoAxes:
    """Accepts every drawing command and ignores it."""

    def __getattr__(self, name: str) -> NoAxes:
        return self

    def __call__(self, *arguments: Any, **options: Any) -> NoAxes:
        return self

    def __getitem__(self, key: Any) -> NoAxes:
        return self

    def __iter__(self) -> Iterator[NoAxes]:
        return iter(())

    def get_legend_handles_labels(self) -> tuple[list[Any], list[str]]:
        return [], []


def _subplots(figure: Any, nrows: int = 1, ncols: int = 1, *, squeeze: bool = True, **options: Any) -> Any:
    axes = np.empty((nrows, ncols), dtype=object)
    for place in np.ndindex(nrows, ncols):
        axes[place] = NoAxes()
    return axes.squeeze()[()] if squeeze else axes


def _savefig(figure: Any, target: io.BytesIO, **options: Any) -> None:
    target.write(ONE_PIXEL)


@contextmanager
def undrawn() -> Iterator[None]:
    """Make matplotlib draw nothing in this process."""
    from matplotlib.figure import Figure

    with mock.patch.object(Figure, "subplots", _subplots), mock.patch.object(Figure, "savefig", _savefig):
        yield


@contextmanager
def reports_undrawn() -> Iterator[None]:
    """Make reports draw nothing; other pictures are drawn as usual."""
    from diffem import api
    from diffem.report import page

    write_report = page.write_report

    def write_undrawn(*arguments: Any, **options: Any) -> Path:
        with undrawn():
            return write_report(*arguments, **options)

    # the command line imports the function when it is called, `fit` has imported it already
    with mock.patch.object(page, "write_report", write_undrawn), mock.patch.object(api, "write_report", write_undrawn):
        yield
