"""NumPy arrays as tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def from_array(array: np.ndarray) -> Tensor:
    """Convert an array to a tensor of the same shape and dtype.

    The tensor shares the array's memory if torch allows that. Arrays that are read-only, of another byte order (as in
    FITS files), or with strides that torch does not support (reversed axes, fields of records) are copied.
    """
    supported = all(stride >= 0 and stride % max(1, array.itemsize) == 0 for stride in array.strides)
    if not (supported and array.dtype.isnative and array.flags.writeable):
        array = array.astype(array.dtype.newbyteorder("="), order="C")
    return torch.from_numpy(array)
