"""Reports without their drawings, for tests of runs: matplotlib would take most of the time of a small run. `tests/report` draws."""

import io
import zlib

import pytest


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


ONE_PIXEL = (
    b"\x89PNG\r\n\x1a\n"
    + chunk(b"IHDR", (1).to_bytes(4, "big") * 2 + bytes([8, 0, 0, 0, 0]))
    + chunk(b"IDAT", zlib.compress(b"\0\xff"))
    + chunk(b"IEND", b"")
)


@pytest.fixture(autouse=True)
def _undrawn(monkeypatch):
    from matplotlib.figure import Figure

    def savefig(figure, target: io.BytesIO, **options) -> None:
        target.write(ONE_PIXEL)

    monkeypatch.setattr(Figure, "savefig", savefig)
