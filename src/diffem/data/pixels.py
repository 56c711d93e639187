"""Images as files keep them: uint8 arrays in `.npz` or `.npy`, channels first or last."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError


def read_npz(path: Path) -> Tensor:
    """The array `images` of a `.npz`, uint8 `(n, c, h, w)` or `(n, h, w)`; channels may come last in the file."""
    try:
        with path.open("rb") as raw:  # opened here, because numpy leaves a file open that it cannot read
            file = np.load(raw, allow_pickle=False)
            names = getattr(file, "files", [])
            array = file["images"] if "images" in names else None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if array is None:
        raise InputError(f"{path} holds {', '.join(names) or 'no named arrays'}; needed: an array 'images'")
    return channels_first(array, path)


def channels_first(array: np.ndarray, path: Path) -> Tensor:
    """uint8 images as a tensor `(n, c, h, w)` or `(n, h, w)`; path: where they come from, for the error."""
    if array.ndim == 4 and array.shape[-1] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or 0 in array.shape:
        raise InputError(
            f"{path}: images must be uint8 of shape (n, c, h, w), (n, h, w, c) or (n, h, w), got {array.dtype} {array.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(array))
