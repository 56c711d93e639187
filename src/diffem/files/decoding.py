"""PNG, JPEG and WebP files, decoded by the decoder that their first bytes name and by no other.

Pillow tries every format it knows, and some of those start other programs (an EPS is handed to Ghostscript) or have
decoders that few people look at. A file's name is never trusted; its signature decides. What cannot be decoded
faithfully is refused by name: animations, and in data sets (`require_plain_grey`) transparency and more than 8 bits
per value, which Pillow's conversion to grey would clip.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core.errors import InputError

if TYPE_CHECKING:
    from PIL.Image import Image

NAMES = {"PNG": "PNG", "JPEG": "JPEG", "WEBP": "WebP"}  # Pillow's names of the formats, and everybody's


def picture_format(data: bytes) -> str | None:
    """The format that a file's first bytes name, by Pillow's name for it: PNG, JPEG, WEBP or None."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "PNG"
    if data.startswith(b"\xff\xd8\xff"):
        return "JPEG"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "WEBP"
    return None


@contextmanager
def opened_picture(data: bytes, formats: tuple[str, ...], max_pixels: int, name: str) -> Iterator[Image]:
    """A picture whose header has been read and whose pixels have not.

    Args:
        data: The file's content.
        formats: The formats to accept, by Pillow's names.
        max_pixels: Larger pictures are refused before memory is allocated for them.
        name: What error messages call the file.

    Raises:
        InputError: The file has another format, is too large, animated or damaged; also for whatever decoding raises
            inside the `with`.
    """
    from PIL import Image, UnidentifiedImageError

    kind = picture_format(data)
    if kind is None or kind not in formats:
        names = [NAMES[f] for f in formats]
        raise InputError(f"{name} cannot be read as an image: by its first bytes it is neither {' nor '.join(names)}")
    try:
        if kind == "WEBP":  # its decoder allocates the whole canvas when the file is opened
            _require_pixels(*_webp_size(data), max_pixels, name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # max_pixels is lower
            file = Image.open(io.BytesIO(data), formats=(kind,))
        with file:
            _require_pixels(*file.size, max_pixels, name)
            # The first picture of an MPO is a JPEG like any other; the rest are previews and depth maps of phones.
            if file.format != "MPO" and (frames := getattr(file, "n_frames", 1)) > 1:
                raise InputError(f"{name} is an animation of {frames} pictures; needed: one picture")
            yield file
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError(
            f"{name} is no picture that can be read as an image: it begins as a {NAMES[kind]} file but is none"
        ) from None
    except Exception as error:  # every decoder fails in its own ways, and each of them is due to the file
        raise InputError(f"{name} cannot be read as an image, it is damaged: {error}") from None


def require_plain_grey(image: Image, name: str) -> None:
    """Refuse what conversion to 8-bit grey would change: 16-bit values (clipped) and transparency (dropped)."""
    if image.mode.startswith(("I", "F")):
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
        raise InputError(f"{name} claims {width}×{height} pixels; at most {max_pixels >> 20} million are read")


def _webp_size(data: bytes) -> tuple[int, int]:
    """(width, height) from the header of a WebP file; its three kinds keep them in different places."""
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
