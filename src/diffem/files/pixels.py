"""Image files: uint8 arrays in `.npz` or `.npy`, channels first or last."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from .arrays import read_arrays


def read_npz(path: Path) -> Tensor:
    """Read the array `images` of a `.npz`, uint8 `(n, c, h, w)` or `(n, h, w)`. Channels may be last in the file."""
    return channels_first(read_arrays(path, "images")["images"], path)


def channels_first(array: np.ndarray, path: Path) -> Tensor:
    """Convert uint8 images to a tensor `(n, c, h, w)` or `(n, h, w)`; path: their source, for error messages."""
    if array.ndim == 4 and array.shape[-1] in (1, 3) and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    if array.dtype != np.uint8 or array.ndim not in (3, 4) or 0 in array.shape:
        raise InputError(
            f"{path}: images must be uint8 of shape (n, c, h, w), (n, h, w, c) or (n, h, w), got {array.dtype} "
            f"{array.shape}"
        )
    return torch.from_numpy(np.ascontiguousarray(array))
