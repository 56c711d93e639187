"""NumPy arrays as tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def from_array(array: np.ndarray) -> Tensor:
    """A tensor of the same dtype. Arrays that are read-only or of another byte order, as in FITS files, are copied."""
    array = np.ascontiguousarray(array)
    if not array.dtype.isnative or not array.flags.writeable:
        array = array.astype(array.dtype.newbyteorder("="))
    return torch.from_numpy(array)
