"""Arrays of images, as reference and as data."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np

from ..sound import EVENT, numbers
from .registry import TIB, Bomb, hole, hostile, pickled


def npy(path: Path, header: str | bytes, data: bytes = b"", version: int = 1, length: int | None = None) -> Path:
    """Write a `.npy` with the given header."""
    text = header.encode() if isinstance(header, str) else header
    text += b" " * (-(len(text) + 11) % 64) + b"\n"
    size = len(text) if length is None else length
    path.write_bytes(
        b"\x93NUMPY" + bytes([version, 0]) + struct.pack("<H" if version == 1 else "<I", size) + text + data
    )
    return path


def claim(shape: str, descr: str = "'<f4'", fortran: str = "False") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"


@hostile("reference", "objects", "objects are never read")
def _(folder):
    np.save(folder / "x.npy", np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return folder / "x.npy"


@hostile("reference", "objects among numbers", "objects are never read")
def _(folder):
    return npy(folder / "x.npy", claim("(1,)", "[('a', '<f4'), ('b', '|O')]"), pickled(folder))


@hostile("reference", "a pickle called .npy", "cannot be read as an array")
def _(folder):
    (folder / "x.npy").write_bytes(pickled(folder))
    return folder / "x.npy"


@hostile("reference", "a shape of 10^15 numbers", "takes 4000000000000000 bytes, the file holds 16")
def _(folder):
    return npy(folder / "x.npy", claim("(1000000000, 1000000)"), bytes(16))


@hostile("reference", "a shape whose size overflows", "the file holds 16")
def _(folder):
    return npy(folder / "x.npy", claim(f"({1 << 62}, 4)"), bytes(16))


@hostile("reference", "negative sizes", "shape")
def _(folder):
    return npy(folder / "x.npy", claim("(-2, -2)"), bytes(16))


@hostile("reference", "a header of 4 GiB", "cannot be read as an array")
def _(folder):
    return npy(folder / "x.npy", claim("(2, 2)"), bytes(16), version=2, length=(1 << 32) - 1)


@hostile("reference", "a header of brackets", "cannot be read as an array")
def _(folder):
    return npy(folder / "x.npy", "(" * 9_000)


@hostile("reference", "a header that calls a function", "cannot be read as an array")
def _(folder):
    return npy(folder / "x.npy", f"__import__('os').mkdir('{folder}/EXECUTED')")


@hostile("reference", "numbers of 2 GiB each", "not numbers|cannot be read")
def _(folder):
    return npy(folder / "x.npy", claim("(4,)", "'|V2147483647'"), bytes(16))


@hostile("reference", "cut off", "the file holds")
def _(folder):
    np.save(folder / "x.npy", numbers(16, *EVENT).numpy())
    (folder / "x.npy").write_bytes((folder / "x.npy").read_bytes()[:-5])
    return folder / "x.npy"


@hostile("reference", "a consistent array of 1 TiB of holes", "real data do not compress this well")
def _(folder):
    path = npy(folder / "x.npy", claim(f"({TIB // 16}, 4)"))
    return hole(path, path.stat().st_size + TIB, path.read_bytes())


@hostile("reference", "values that are NaN", "must contain finite samples")
def _(folder):
    np.save(folder / "x.npy", np.full((16, *EVENT), np.nan, np.float32))
    return folder / "x.npy"


def zeros_npz(path: Path, images: int) -> Path:
    """Write an `.npz` of images of zeros, which is a thousand times smaller than its content."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "|u1", "fortran_order": False, "shape": (images, 3, 32, 32)})
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("images.npy", "w") as file:
        file.write(buffer.getvalue())
        for _ in range(images // 1000):
            file.write(bytes(1000 * 3 * 32 * 32))
    return path


@hostile("reference", "an .npz that unpacks to a thousand times its size", "real data do not compress this well")
def _(folder):
    return zeros_npz(folder / "x.npz", 40_000)


@hostile("reference", "an .npz of objects", "objects are never read")
def _(folder):
    np.savez(folder / "x.npz", images=np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return folder / "x.npz"


@hostile("reference", "an .npz with a flipped bit", "CRC|cannot be read")
def _(folder):
    np.savez(folder / "x.npz", images=np.zeros((4, 1, 8, 8), np.uint8))
    data = bytearray((folder / "x.npz").read_bytes())
    data[len(data) // 2] ^= 1
    (folder / "x.npz").write_bytes(bytes(data))
    return folder / "x.npz"


@hostile("reference", "an .npz whose directory lies about sizes", "cannot be read|holds|shrink")
def _(folder):
    np.savez(folder / "x.npz", images=np.zeros((4, 1, 8, 8), np.uint8))
    data = bytearray((folder / "x.npz").read_bytes())
    place = data.index(b"PK\x01\x02")
    data[place + 20 : place + 28] = struct.pack("<II", 0xFFFFFFF0, 0xFFFFFFF0)
    (folder / "x.npz").write_bytes(bytes(data))
    return folder / "x.npz"
