"""Images as people keep them: a folder or tar archive of JPEG or PNG files, or arrays in an `.npz`."""

from __future__ import annotations

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from ..errors import InputError

SUFFIXES = (".jpg", ".jpeg", ".png")


@dataclass
class ImageSet:
    """pixels: `(n, H, W)` magnitudes or `(n, 2, H, W)` complex, as stored; groups: `(n,)`, which folder each came from."""

    pixels: np.ndarray
    groups: np.ndarray

    @property
    def complex(self) -> bool:
        return self.pixels.ndim == 4

    def unit(self, scale: float | None) -> float:
        """The stored value that means 1."""
        if scale is not None:
            if not (isinstance(scale, int | float) and scale > 0):
                raise InputError(f"data.scale must be a positive number, got {scale!r}")
            return float(scale)
        if self.pixels.dtype == np.uint8:
            return 255.0
        if self.pixels.dtype == np.int16:
            return 4095.0  # twelve bits, as scanners store them
        magnitude = np.hypot(self.pixels[:, 0], self.pixels[:, 1]) if self.complex else self.pixels
        return float(magnitude.max()) or 1.0

    def digest(self) -> str:
        return hashlib.sha256(np.ascontiguousarray(self.pixels).data).hexdigest()


def read_images(path: str, size: int | None = None) -> ImageSet:
    """The images at `path`, in the order of their names; files of images are fitted into size×size when a size is given."""
    file = Path(path)
    if file.is_dir():
        names = sorted(str(p.relative_to(file).as_posix()) for p in file.rglob("*") if p.suffix.lower() in SUFFIXES)
        return _decode(((name, (file / name).read_bytes()) for name in names), path, size)
    if not file.is_file():
        raise InputError(f"data.path: no folder, tar archive or .npz file at {path!r}")
    if file.suffix == ".npz":
        return _npz(file)
    if not tarfile.is_tarfile(file):
        raise InputError(f"data.path: {path!r} is neither a folder, a tar archive nor an .npz file")
    try:
        with tarfile.open(file) as archive:
            members = [m for m in archive if m.isfile() and PurePosixPath(m.name).suffix.lower() in SUFFIXES]
            members.sort(key=lambda m: m.name)
            return _decode(((m.name, archive.extractfile(m).read()) for m in members), path, size)  # type: ignore[union-attr]
    except (tarfile.TarError, EOFError) as error:
        raise InputError(f"data.path: {path!r} cannot be read as a tar archive: {error}") from None


def _decode(files: Iterator[tuple[str, bytes]], path: str, size: int | None) -> ImageSet:
    from PIL import Image, UnidentifiedImageError

    pixels, groups, folders = [], [], {}  # type: ignore[var-annotated]
    for name, data in files:
        try:
            image = Image.open(io.BytesIO(data)).convert("L")
        except (UnidentifiedImageError, OSError) as error:
            raise InputError(f"{path}: {name} cannot be read as an image: {error}") from None
        if size is not None and image.size != (size, size):
            image.thumbnail((size, size), Image.Resampling.BICUBIC)
            canvas = Image.new("L", (size, size))
            canvas.paste(image, ((size - image.width) // 2, (size - image.height) // 2))
            image = canvas
        array = np.asarray(image)
        if pixels and array.shape != pixels[0].shape:
            raise InputError(
                f"{path}: images differ in size, {array.shape} of {name} and {pixels[0].shape}; prepare them with a size: "
                "diffem prepare PATH --size 160 -o images.npz"
            )
        pixels.append(array)
        groups.append(folders.setdefault(str(PurePosixPath(name).parent), len(folders)))
    if not pixels:
        raise InputError(f"data.path: no {', '.join(SUFFIXES)} images in {path!r}")
    return ImageSet(np.stack(pixels), np.array(groups))


def _npz(file: Path) -> ImageSet:
    try:
        with file.open("rb") as handle, np.load(handle, allow_pickle=False) as arrays:
            name = next((name for name in ("images", "image") if name in arrays), None)
            if name is None:
                raise InputError(
                    f"{file} holds {', '.join(arrays) or 'nothing'}; an array 'images' or 'image' is needed"
                )
            pixels = arrays[name]
            groups = arrays["groups"] if "groups" in arrays else np.zeros(len(pixels), dtype=np.int64)
    except (OSError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{file} cannot be read: {error}") from None
    if pixels.dtype.kind == "c":
        pixels = np.stack([pixels.real, pixels.imag], 1)
    if pixels.dtype.kind not in "uif" or not (pixels.ndim == 3 or (pixels.ndim == 4 and pixels.shape[1] == 2)):
        raise InputError(
            f"{file}: images must be (n, H, W), or complex as (n, 2, H, W), got {pixels.dtype} {pixels.shape}"
        )
    if len(groups) != len(pixels) or not np.isfinite(pixels).all():
        raise InputError(f"{file}: groups must name one group per image, and images be finite")
    return ImageSet(pixels, groups)


def to_npz(images: ImageSet) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, images=images.pixels, groups=images.groups)
    return buffer.getvalue()
