"""Decode an uploaded file into a sample. A file that cannot be decoded raises an `InputError` with the reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files.arrays import array_of
from ..files.decoding import opened_picture, picture_format

FORMATS = ("PNG", "JPEG", "WEBP")
UPLOAD_PIXELS = 1 << 26  # larger pictures are rejected before they are decoded


def image_shape(event_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of a sample that is an image.

    Raises:
        InputError: If samples of this shape are not images.
    """
    if len(event_shape) == 2 and min(event_shape) >= 4:
        return 1, *event_shape
    if len(event_shape) == 3 and event_shape[0] in (1, 2, 3) and min(event_shape[1:]) >= 4:
        return event_shape[0], event_shape[1], event_shape[2]
    raise InputError(
        f"the samples of this run have shape {event_shape}, which is not an image, so pictures cannot be used"
    )


@dataclass(frozen=True)
class Upload:
    """A decoded upload.

    Attributes:
        values: `(height, width)` or `(3, height, width)`, the grey or colour levels of a picture in [0, 1]; or
            `(*event)`, the array of a `.npy` file.
        picture: Whether `values` are the levels of a picture.
    """

    values: Tensor
    picture: bool

    def sample(self, event_shape: tuple[int, ...], levels: tuple[float, float], invert: bool = False) -> Tensor:
        """Convert to a sample, `(*event)`.

        Args:
            event_shape: Shape of a sample.
            levels: The values of x that are black and white; an array is not rescaled.
            invert: Exchange black and white of a picture.
        """
        if not self.picture:
            return self.values
        grey = 1 - self.values if invert else self.values
        low, high = levels
        if image_shape(event_shape)[0] == 2:  # a complex image with zero phase, in which black is zero
            return torch.stack([high * grey, torch.zeros_like(grey)])
        return (low + (high - low) * grey).reshape(event_shape)


def read_upload(
    data: bytes | None, event_shape: tuple[int, ...], levels: tuple[float, float], invert: bool = False
) -> Tensor:
    """Decode the content of a PNG, JPEG, WebP or `.npy` file and convert it to a sample, `(*event)`; see `decode`."""
    return decode(data, event_shape).sample(event_shape, levels, invert)


def decode(data: bytes | None, event_shape: tuple[int, ...]) -> Upload:
    """Decode the content of a PNG, JPEG, WebP or `.npy` file. The first bytes determine the format.

    A picture is cropped around its centre to the aspect ratio of the samples, resized, and converted to grey or colour
    like the samples. Its orientation (EXIF) is applied, transparent pixels become white, and colour profiles are
    ignored. An array must have the shape of a sample.

    Raises:
        InputError: If the file cannot be decoded, or an array has another shape or values that are not finite.
    """
    if not data:
        raise InputError("choose a file first: a picture, or a .npy array of the shape of a sample")
    channels, height, width = image_shape(event_shape)
    if data.startswith(b"\x93NUMPY"):
        return Upload(_array(data, event_shape), picture=False)
    if picture_format(data) is None:
        raise InputError("this file is not a readable picture; it must be PNG, JPEG, WebP or a .npy array")
    with opened_picture(data, FORMATS, UPLOAD_PIXELS, "the uploaded picture") as file:
        return Upload(_levels(file, channels == 3, (width, height)), picture=True)


def _levels(file: Any, colour: bool, size: tuple[int, int]) -> Tensor:
    """Crop and resize to `size` (width, height); levels in [0, 1], `(height, width)` or `(3, height, width)`."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(file)
    white = 255.0
    if image.mode.startswith("I"):  # 16 bits per value: Pillow would clip them at 255 instead of scaling them
        white = 65535.0
        image = Image.fromarray(np.asarray(image).astype(np.float32))
    elif image.has_transparency_data:
        image = image.convert("RGBA")
    elif image.mode not in ("L", "RGB"):
        image = image.convert("L" if image.mode == "1" else "RGB")
    # resized before it is converted, so that the large picture is in memory only once
    resampling = Image.Resampling.BOX if image.width >= size[0] else Image.Resampling.BICUBIC
    image = ImageOps.fit(image, size, resampling)
    if image.mode == "RGBA":
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "F":
        image = image.convert("RGB" if colour else "L")
    levels = torch.from_numpy(np.asarray(image, dtype=np.float32) / white).clamp(0, 1)
    if not colour:
        return levels
    return levels.expand(3, *levels.shape).clone() if levels.ndim == 2 else levels.movedim(-1, 0)


def _array(data: bytes, event_shape: tuple[int, ...]) -> Tensor:
    array = array_of(data, "the uploaded file")
    if array.dtype.kind not in "fiu" or tuple(array.shape) != event_shape:
        raise InputError(
            f"a sample is an array of real numbers of shape {event_shape}, got {array.dtype} of shape {array.shape}"
        )
    with np.errstate(over="ignore"):  # checked below
        x = torch.from_numpy(array.astype(np.float32))
    if not torch.isfinite(x).all():
        raise InputError("the array contains values that are not finite")
    return x
