"""NumPy arrays as tensors: the same numbers, shape and dtype for every memory layout."""

import numpy as np
import pytest
import torch

from diffem.core.arrays import from_array

NUMBERS = np.arange(12.0).reshape(3, 4)
RECORDS = np.zeros(5, dtype=[("flag", "i1"), ("value", "f8")])
RECORDS["value"] = np.arange(5)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


LAYOUTS = {
    "contiguous": NUMBERS,
    "transposed": NUMBERS.T,
    "every second": NUMBERS[:, ::2],
    "reversed": NUMBERS[::-1],
    "big-endian": NUMBERS.astype(">f8"),
    "read-only": read_only(NUMBERS),
    "a field of records": RECORDS["value"],
    "without axes": np.array(1.5),
    "empty": np.zeros((0, 3)),
    "integers": np.arange(3, dtype=np.int16),
}


@pytest.mark.parametrize("array", LAYOUTS.values(), ids=LAYOUTS)
def test_the_numbers_the_shape_and_the_dtype_stay(array):
    tensor = from_array(array)
    assert tensor.shape == array.shape
    assert tensor.dtype == getattr(torch, array.dtype.newbyteorder("=").name)
    assert np.array_equal(tensor.numpy(), array)


def test_memory_is_shared_if_torch_allows_it():
    for array in (NUMBERS.copy(), NUMBERS.copy().T):
        from_array(array)[0, 0] = 7
        assert array[0, 0] == 7
    untouched = read_only(NUMBERS)
    from_array(untouched)[0, 0] = 7
    assert untouched[0, 0] == NUMBERS[0, 0]
