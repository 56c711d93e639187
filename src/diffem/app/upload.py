"""The one file a visitor can hand in: it arrives as its content, and becomes a sample or a readable refusal."""

from __future__ import annotations

import io
import warnings

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..runs.arrays import array_of

UPLOAD_PIXELS = 1 << 26  # beyond this a picture is not even decoded


def image_shape(event_shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(channels, height, width) of a sample that is an image."""
    if len(event_shape) == 2 and min(event_shape) >= 4:
        return 1, *event_shape
    if len(event_shape) == 3 and event_shape[0] in (1, 2, 3) and min(event_shape[1:]) >= 4:
        return event_shape[0], event_shape[1], event_shape[2]
    raise InputError(
        f"the samples of this run have shape {event_shape}: they are no images, so no picture can stand for one"
    )


def read_upload(
    data: bytes | None, event_shape: tuple[int, ...], levels: tuple[float, float], invert: bool = False
) -> Tensor:
    """A picture's file (PNG, JPEG, …) or a `.npy` array as a sample, `(*event)`.

    A picture is cut to the sample's proportions about its centre, resized, made grey or coloured as samples are, and black and white become
    `levels`. An array must have the sample's shape and is taken as it is.
    """
    from PIL import Image, ImageOps, UnidentifiedImageError

    if not data:
        raise InputError("choose a file first: a picture, or a .npy array of the shape of a sample")
    channels, height, width = image_shape(event_shape)
    if data[:6] == b"\x93NUMPY":
        return _array(data, event_shape)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # sizes are judged below
            opened = Image.open(io.BytesIO(data))
        with opened as file:
            if file.width * file.height > UPLOAD_PIXELS:
                raise InputError(
                    f"the picture has {file.width}×{file.height} pixels; at most {UPLOAD_PIXELS >> 20} million are read"
                )
            image = ImageOps.exif_transpose(file).convert("RGB" if channels == 3 else "L")
    except InputError:
        raise
    except UnidentifiedImageError:
        raise InputError("this file is no picture that can be read; PNG, JPEG, WebP or a .npy array, please") from None
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise InputError(f"the picture is damaged: {error}") from None
    image = ImageOps.fit(
        image, (width, height), Image.Resampling.BOX if image.width >= width else Image.Resampling.BICUBIC
    )
    grey = torch.from_numpy(np.asarray(image, dtype=np.float32) / 255)
    grey = 1 - grey if invert else grey
    low, high = levels
    if channels == 2:  # a complex image without phase: black is zero
        return torch.stack([high * grey, torch.zeros_like(grey)])
    x = low + (high - low) * grey
    return (x.movedim(-1, 0) if channels == 3 else x).reshape(event_shape)


def _array(data: bytes, event_shape: tuple[int, ...]) -> Tensor:
    array = array_of(data, "the uploaded file")
    if array.dtype.kind not in "fiu" or tuple(array.shape) != event_shape:
        raise InputError(
            f"a sample is an array of real numbers of shape {event_shape}, got {array.dtype} of shape {array.shape}"
        )
    x = torch.from_numpy(array.astype(np.float32))
    if not torch.isfinite(x).all():
        raise InputError("the array holds values that are not finite")
    return x
