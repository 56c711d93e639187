"""Read images from a folder or tar archive of JPEG or PNG files, or from arrays in an `.npz` file."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import math
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

import numpy as np

from ..core.errors import InputError
from ..files import memory
from ..files.arrays import read_arrays
from ..files.decoding import open_picture, require_plain_grey
from ..files.reading import open_checked, require_substance, size_of

SUFFIXES = (".jpg", ".jpeg", ".png")
PIXELS = 1 << 25  # largest number of pixels of an image
FILE_BYTES = 1 << 28  # largest size of the file of an image
MEMBERS = 20_000  # largest number of files in an archive, plus one for every kilobyte of its size
# Images are compressed already, so an archive may unpack to at most these bytes and this multiple of its own size.
UNPACKED_BYTES, UNPACKED_FACTOR = 1 << 24, 10


@dataclass
class ImageSet:
    """Images with the values of their files.

    Attributes:
        pixels: `(n, H, W)` magnitudes, or `(n, 2, H, W)` complex.
        groups: `(n,)`. Number of the folder that contains the image.
    """

    pixels: np.ndarray
    groups: np.ndarray

    @property
    def complex(self) -> bool:
        """Whether the images are complex."""
        return self.pixels.ndim == 4

    def unit(self, scale: float | None) -> float:
        """The pixel value that corresponds to 1: `scale`, or a default that depends on the type of the pixels."""
        if scale is not None:
            if not (isinstance(scale, int | float) and 0 < scale < math.inf):
                raise InputError(f"data.scale must be a positive number, got {scale!r}")
            return float(scale)
        if self.pixels.dtype == np.uint8:
            return 255.0
        if self.pixels.dtype == np.int16:
            return 4095.0  # scanners store twelve bits
        magnitude = np.hypot(self.pixels[:, 0], self.pixels[:, 1]) if self.complex else self.pixels
        return float(magnitude.max()) or 1.0

    def clipped(self, scale: float | None) -> float:
        """The fraction of magnitudes above the unit, which samples do not distinguish; complex images are not clipped.

        Raises:
            InputError: If magnitudes are negative, or some are above the unit and `scale` is not given.
        """
        if self.complex:
            return 0.0
        one, low, high = self.unit(scale), float(self.pixels.min()), float(self.pixels.max())
        if low < 0 or (scale is None and high > one):
            raise InputError(
                f"data.path: magnitude images must lie between 0 and data.scale, here {one:g}; got {low:g} to {high:g}"
            )
        return float((self.pixels > one).mean())

    def digest(self) -> str:
        """SHA-256 of the pixels, in hexadecimal."""
        return hashlib.sha256(np.ascontiguousarray(self.pixels).data).hexdigest()


def read_images(path: str, size: int | None = None) -> ImageSet:
    """Read images, sorted by name.

    Args:
        path: A folder, a tar archive or an `.npz` file.
        size: If given, images from JPEG and PNG files are shrunk and padded to size×size.

    Raises:
        InputError: If there are no images, or a file cannot be read.
    """
    file = Path(path)
    if file.is_dir():
        names = sorted(str(p.relative_to(file).as_posix()) for p in file.rglob("*") if p.suffix.lower() in SUFFIXES)
        return _decode(((name, _file_bytes(file / name)) for name in names), path, size)
    if not file.is_file():
        raise InputError(f"data.path: no folder, tar archive or .npz file at {path!r}")
    if file.suffix == ".npz":
        return _npz(file)
    with open_checked(file) as handle:
        try:
            with tarfile.open(fileobj=_unpacked(handle, path), mode="r:") as archive:  # nothing is extracted to disk
                members = []
                for count, member in enumerate(archive):
                    if count > MEMBERS + size_of(handle) // 1024:
                        raise InputError(
                            f"data.path: {path!r} contains more files than an archive of its size can have"
                        )
                    if member.isfile() and PurePosixPath(member.name).suffix.lower() in SUFFIXES:
                        members.append(member)
                members.sort(key=lambda m: m.name)
                return _decode(((m.name, _member_bytes(archive, m, path)) for m in members), path, size)
        except InputError:
            raise
        except tarfile.ReadError:
            raise InputError(
                f"data.path: {path!r} is not a folder, a tar archive or an .npz file, or it is damaged"
            ) from None
        except Exception as error:  # decompressors raise many kinds of exceptions, all caused by the file
            raise InputError(f"data.path: {path!r} cannot be read as a tar archive: {error}") from None


def _file_bytes(file: Path) -> bytes:
    with open_checked(file) as handle:
        if size_of(handle) > FILE_BYTES:
            raise InputError(f"{file} is too large for an image: {size_of(handle)} bytes, at most {FILE_BYTES}")
        return handle.read()


def _member_bytes(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> bytes:
    if member.size > FILE_BYTES or member.issparse():
        raise InputError(f"{path}: {member.name} is too large for an image: {member.size} bytes, at most {FILE_BYTES}")
    handle = archive.extractfile(member)
    data = handle.read() if handle is not None else b""
    if len(data) != member.size:
        raise InputError(f"{path}: {member.name} is cut off after {len(data)} of {member.size} bytes")
    return data


def _unpacked(file: BinaryIO, path: str) -> Any:
    """The decompressed tar archive, with a limit on its size."""
    start, size = file.read(6), size_of(file)
    file.seek(0)
    if start.startswith(b"\xfd7zXZ"):
        raise InputError(f"data.path: {path!r} is compressed with xz; unpack it, or use .tar or .tar.gz")
    if start.startswith(b"\x1f\x8b"):
        return _LimitedFile(gzip.GzipFile(fileobj=file), UNPACKED_BYTES + UNPACKED_FACTOR * size, path)
    if start.startswith(b"BZh"):
        return _LimitedFile(bz2.BZ2File(file), UNPACKED_BYTES + UNPACKED_FACTOR * size, path)
    return file


class _LimitedFile:
    """A readable file of at most `most` bytes."""

    def __init__(self, file: Any, most: int, path: str) -> None:
        self.file, self.most, self.path = file, most, path

    def read(self, count: int = -1) -> bytes:
        self._require(self.file.tell() + max(count, 0))
        return self.file.read(min(count, self.most) if count >= 0 else self.most)

    def seek(self, place: int, whence: int = 0) -> int:
        if whence == 0:
            self._require(place)
        return self.file.seek(place, whence)

    def tell(self) -> int:
        return self.file.tell()

    def _require(self, place: int) -> None:
        if place > self.most:
            raise InputError(
                f"data.path: {self.path!r} unpacks to more than {self.most} bytes, the limit for an archive of its size"
            )


def _decode(files: Iterator[tuple[str, bytes]], path: str, size: int | None) -> ImageSet:
    """Decode the files to 8-bit grey; `files` yields names and contents."""
    from PIL import Image, ImageOps

    pixels, groups, folders = [], [], {}  # type: ignore[var-annotated]
    claimed = held = 0  # bytes of the decoded pictures so far, and of their files
    for name, data in files:
        with open_picture(data, ("JPEG", "PNG"), PIXELS, f"{path}: {name}") as stored:
            claimed, held = claimed + stored.width * stored.height, held + len(data)
            require_substance(claimed, held, f"{path} up to {name}")
            require_plain_grey(stored, f"{path}: {name}")
            image = ImageOps.exif_transpose(stored).convert("L")
        if size is not None and image.size != (size, size):
            image.thumbnail((size, size), Image.Resampling.BICUBIC)
            canvas = Image.new("L", (size, size))
            canvas.paste(image, ((size - image.width) // 2, (size - image.height) // 2))
            image = canvas
        array = np.asarray(image)
        if pixels and array.shape != pixels[0].shape:
            raise InputError(
                f"{path}: all images must have the same size, got {pixels[0].shape} and {array.shape} of {name}; bring "
                "them to one size with diffem prepare PATH --size 160 -o images.npz"
            )
        memory.require(2 * (len(pixels) + 1) * array.nbytes if len(pixels) % 64 == 0 else 0, path)
        pixels.append(array)
        groups.append(folders.setdefault(str(PurePosixPath(name).parent), len(folders)))
    if not pixels:
        raise InputError(f"data.path: no {', '.join(SUFFIXES)} images in {path!r}")
    return ImageSet(np.stack(pixels), np.array(groups))


def _npz(file: Path) -> ImageSet:
    arrays = read_arrays(file, "images", "image", also=("groups",))
    pixels = arrays["images"] if "images" in arrays else arrays["image"]
    groups = arrays.get("groups", np.zeros(len(pixels) if pixels.ndim else 0, dtype=np.int64))
    if pixels.dtype.kind == "c":
        pixels = np.stack([pixels.real, pixels.imag], 1)
    if pixels.dtype.kind not in "uif" or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[1] == 2)):
        raise InputError(
            f"{file}: images must be (n, H, W), or complex as (n, 2, H, W), got {pixels.dtype} {pixels.shape}"
        )
    if groups.shape != (len(pixels),) or 0 in pixels.shape or not np.isfinite(pixels).all():
        raise InputError(f"{file}: images must be finite and not empty, and groups must have one entry per image")
    return ImageSet(pixels, groups)


def to_npz(images: ImageSet) -> bytes:
    """Content of a compressed `.npz` file that `read_images` reads."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=images.pixels, groups=images.groups)
    return buffer.getvalue()
