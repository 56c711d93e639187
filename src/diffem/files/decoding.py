"""Decode untrusted PNG, JPEG and WebP files, each with the decoder that its first bytes determine.

By default Pillow tries every format it supports. Some of them start other programs (EPS starts Ghostscript) or have
rarely tested decoders. Here the signature of the file decides, not its name. Files that would lose information are
rejected with an error: animations, and in data sets (`require_plain_grey`) transparency and values of more than 8 bits,
which Pillow would clip when it converts to grey.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = {"PNG": "PNG", "JPEG": "JPEG", "WEBP": "WebP"}  # Pillow's names of the formats: their usual names


def picture_format(data: bytes) -> str | None:
    """The format determined by the first bytes of a file, by Pillow's name: PNG, JPEG, WEBP or None."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None


@contextmanager
def open_picture(data: bytes, formats: tuple[str, ...], max_pixels: int, name: str) -> Iterator[Image]:
    """Open a picture: its header is read, its pixels are not.

    Args:
        data: The file's content.
        formats: The formats to accept, by Pillow's names.
        max_pixels: Larger pictures are rejected before memory is allocated for them.
        name: Name of the file in error messages.

    Raises:
        InputError: If the file has another format, is too large, animated or damaged. Errors of the decoder inside
            the `with` statement are converted to `InputError` too.
    """
    from PIL import Image, UnidentifiedImageError

    kind = picture_format(data)
    if kind is None or kind not in formats:
        names = [NAMES[f] for f in formats]
        raise InputError(f"{name} cannot be read as an image: its first bytes are neither {' nor '.join(names)}")
    try:
        if kind == "WEBP":  # its decoder allocates the whole canvas when the file is opened
            _require_pixels(*_webp_size(data), max_pixels, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # max_pixels is lower
            file = Image.open(io.BytesIO(data), formats=(kind,))
        with file:
            _require_pixels(*file.size, max_pixels, name)
            # The first picture of an MPO is an ordinary JPEG; the others are previews and depth maps of phones.
            if file.format != "MPO" and (frames := getattr(file, "n_frames", 1)) > 1:
                raise InputError(f"{name} must be a single picture, got an animation of {frames} frames")
            yield file
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(
            f"{name} cannot be read as an image: it begins like a {NAMES[kind]} file, but the rest is invalid"
        ) from None
    except Image.DecompressionBombError as error:  # raised before the size is known here, with a limit of its own
        count = next(iter(re.findall(r"\d+", str(error))), "too many")
        raise InputError(f"{name} has {count} pixels, the limit is {max_pixels >> 20} million") from None
    except Exception as error:  # decoders raise many kinds of exceptions, all caused by the file
        raise InputError(f"{name} cannot be read as an image, it is damaged: {error}") from None


def require_plain_grey(image: Image, name: str) -> None:
    """Reject pictures that would lose information in the conversion to 8-bit grey.

    Raises:
        InputError: If the picture has values of more than 8 bits, which would be clipped or rounded, or transparency.
    """
    # Pillow reads colours and grey with transparency of 16 bits as modes of 8 bits
    deep = any("16" in str(part.args) for part in getattr(image, "tile", ()))
    if deep or image.mode.startswith(("I", "F")):
        raise InputError(
            f"{name} has more than 8 bits per value; save it with 8 bits, or put the values into an .npz array 'images'"
        )
    if (
        image.has_transparency_data
        and image.convert("RGBA").getchannel("A").histogram()[255] < image.width * image.height
    ):
        raise InputError(f"{name} is partly transparent; save it without an alpha channel")


def _require_pixels(width: int, height: int, max_pixels: int, name: str) -> None:
    if width * height > max_pixels:
        raise InputError(f"{name} has {width}×{height} pixels, the limit is {max_pixels >> 20} million")


def _webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) from the header of a WebP file; their position depends on the kind of file."""
    kind = data[12:16]
    if kind == b"VP8X":
        return 1 + int.from_bytes(data[24:27], "little"), 1 + int.from_bytes(data[27:30], "little")
    if kind == b"VP8L":
        (bits,) = struct.unpack("<I", data[21:25])
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    if kind == b"VP8 ":
        width, height = struct.unpack("<HH", data[26:30])
        return width & 0x3FFF, height & 0x3FFF
    raise ValueError(f"unknown kind of WebP {kind!r}")
