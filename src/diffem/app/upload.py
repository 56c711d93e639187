"""Uploaded files: each is decoded into a sample once and deleted; the decoded sample stays in memory.

A file that cannot be decoded raises an `InputError` with the reason.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files.arrays import array_of
from ..files.decoding import open_picture, picture_format
from .folder import remove_empty

FORMATS = ("PNG", "JPEG", "WEBP")
KEPT = 64  # decoded uploads in memory; the least recently used one is dropped first
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
    with open_picture(data, FORMATS, UPLOAD_PIXELS, "the uploaded picture") as file:
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


class UploadReader:
    """Reads and deletes uploaded files.

    Gradio stores an upload in its folder, and every later request of the page contains its path. The file is read at
    the first request; later requests get the decoded upload for the same path. Gradio also accepts addresses to
    download from, and it does not check paths if the page is mounted in another server. Here a path must lie in the
    folder.

    Args:
        folder: The folder in which Gradio stores uploads; no file outside it is read.
        decode: Turns a file's content into an upload, or raises `InputError`.
    """

    def __init__(self, folder: Path, decode: Callable[[bytes], Upload]) -> None:
        self.folder, self.decode = folder.resolve(), decode
        self._read: OrderedDict[Path, Upload | InputError] = OrderedDict()
        self._lock = threading.Lock()

    def field(self, gr: Any, **options: Any) -> Any:
        """Create the upload field; event handlers receive an `Upload`, an `InputError`, or None without a file."""
        field = gr.File(type="binary", **options)
        # replaced on the object: Gradio writes a stub file next to the source of every subclass of a component
        field.async_move_resource_to_block_cache = self._resolved
        field.preprocess = lambda payload: None if payload is None else self.read(payload.path)
        return field

    def read(self, path: str) -> Upload | InputError:
        """Decode the uploaded file at `path` and delete it."""
        file = self._require_inside(path)
        with self._lock:
            if file.is_file() and not file.is_symlink():
                data = file.read_bytes()
                file.unlink()
                if file.parent != self.folder:
                    remove_empty(file.parent)
                self._read[file] = self._decoded(data)
            elif file not in self._read:
                return InputError("the uploaded file has expired; choose it again")
            self._read.move_to_end(file)
            while len(self._read) > KEPT:
                self._read.popitem(last=False)
            return self._read[file]

    def _decoded(self, data: bytes) -> Upload | InputError:
        try:
            return self.decode(data)
        except InputError as error:
            return error

    async def _resolved(self, path: Any) -> str:
        return str(self._require_inside(path))

    def _require_inside(self, path: Any) -> Path:
        file = Path(str(path)).resolve()
        if self.folder not in file.parents:
            raise ValueError(f"{path} is not an uploaded file")
        return file
