"""Archives of pictures."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zlib
from pathlib import Path

from .registry import TIB, hostile


def png(width: int, height: int, data: bytes = bytes(1000)) -> bytes:
    """A PNG that claims a size, with arbitrary content."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")


def tar(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for info, data in members:
            info.size = len(data) or info.size
            archive.addfile(info, io.BytesIO(data) if data else None)
    return path


def link(name: str, target: str, kind: bytes = tarfile.SYMTYPE) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info, b""


@hostile("images", "a picture of 10^10 pixels", "10000000000 pixels")
def _(folder):
    (folder / "a.png").write_bytes(png(100_000, 100_000))
    return folder


@hostile("images", "a picture of 10^8 pixels", "has 10000×10000 pixels")
def _(folder):
    (folder / "a.png").write_bytes(png(10_000, 10_000))
    return folder


@hostile("images", "a hundred pictures of 25 million pixels, all black", "real data do not compress this well")
def _(folder):
    data = png(5000, 5000, bytes(5000 * 5001))
    for k in range(100):
        (folder / f"{k:03d}.png").write_bytes(data)
    return folder


@hostile("images", "a picture that ends early", "a.png cannot be read as an image")
def _(folder):
    (folder / "a.png").write_bytes(png(64, 64)[:60])
    return folder


@hostile("images", "a program called a picture", "neither JPEG nor PNG")
def _(folder):
    (folder / "a.png").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run\n%%EOF\n")
    return folder


@hostile("images", "a picture that is a pipe", "is not a file but a pipe")
def _(folder):
    os.mkfifo(folder / "a.png")
    return folder


@hostile("images", "a picture that is a device", "is not a file but a device")
def _(folder):
    (folder / "a.png").symlink_to("/dev/zero")
    return folder


@hostile("images", "a folder that holds itself", "images in")
def _(folder):
    (folder / "a").mkdir()
    (folder / "a" / "again").symlink_to("..")
    return folder


@hostile("images", "an archive whose names climb out", "images in .*x.tar|cannot be read as an image")
def _(folder):
    names = ("../../EXECUTED.png", f"{folder}/EXECUTED.png")
    return tar(folder / "x.tar", *((tarfile.TarInfo(name), b"not a picture") for name in names))


@hostile("images", "an archive of links", "images in")
def _(folder):
    secret = folder / "secret.png"
    secret.write_bytes(png(8, 8))
    return tar(
        folder / "x.tar",
        link("a.png", str(secret)),
        link("b.png", "b.png"),
        link("c.png", str(secret), tarfile.LNKTYPE),
    )


@hostile("images", "an archive with a member of 1 TiB", "too large for an image|cannot be read|damaged")
def _(folder):
    info = tarfile.TarInfo("a.png")
    info.size = TIB
    (folder / "x.tar").write_bytes(info.tobuf() + bytes(2048))
    return folder / "x.tar"


@hostile("images", "an archive that unpacks to 10 GB", "unpacks to more than")
def _(folder):
    info = tarfile.TarInfo("a.txt")
    info.size = 10 << 30
    # gzip members can be concatenated: one of 64 MiB of zeros, many times
    zeros = gzip.compress(bytes(1 << 26), 6, mtime=0)
    (folder / "x.tar.gz").write_bytes(gzip.compress(info.tobuf(), mtime=0) + zeros * 160)
    return folder / "x.tar.gz"


@hostile("images", "an archive of a million empty files", "contains more files than an archive of its size")
def _(folder):
    block = b"".join(tarfile.TarInfo(f"{k}.png").tobuf() for k in range(1000))
    (folder / "x.tar.gz").write_bytes(gzip.compress(block, mtime=0) * 1000)
    return folder / "x.tar.gz"


@hostile("images", "an archive cut off", "cut off|damaged|cannot be read")
def _(folder):
    path = tar(folder / "x.tar.gz", (tarfile.TarInfo("a.png"), png(64, 64) * 40), mode="w:gz")
    path.write_bytes(path.read_bytes()[:-200])
    return path
