r"""Read the files of CIFAR-10: binary batches as they are published, or `train.npz` and `test.npz`.

In a binary batch, each image is one byte with the label and 3072 bytes with the red, green and blue planes. The `.npz`
files contain an array `images`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from . import memory
from .pixels import read_npz
from .reading import open_checked, size_of

EVENT = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes per image of a binary batch
BATCHES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}

GET = (
    "get 'CIFAR-10 binary version (suitable for C programs)' from the CIFAR-10 page "
    "(https://www.cs.toronto.edu/~kriz/cifar.html) and unpack it there"
)


def images(folder: str | Path, split: str = "train") -> Tensor:
    """Read the images of a split.

    Args:
        folder: A folder with the binary batches, or with `train.npz` and `test.npz`.
        split: `train` or `test`.

    Returns:
        Pixels, uint8 `(n, 3, 32, 32)`.

    Raises:
        InputError: If a file is missing or damaged.
    """
    if split not in BATCHES:
        raise InputError(f"unknown split {split!r} of CIFAR-10; known: {', '.join(BATCHES)}")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"folder {str(folder)!r} for CIFAR-10 does not exist; {GET}")
    if (folder / "cifar-10-batches-bin").is_dir():  # as the official archive unpacks
        folder = folder / "cifar-10-batches-bin"
    names = BATCHES[split]
    missing = [name for name in names if not (folder / name).is_file()]
    if not missing:
        return _joined([(name, read_batch(folder / name)) for name in names], folder)
    packed = folder / f"{split}.npz"
    if packed.is_file():
        pixels = read_npz(packed)
        if tuple(pixels.shape[1:]) != EVENT:
            raise InputError(f"{packed}: images must have shape (3, 32, 32), got {tuple(pixels.shape[1:])}")
        return pixels
    if len(missing) < len(names):
        raise InputError(f"{folder} lacks {', '.join(missing)} of CIFAR-10's {len(names)} training batches; {GET}")
    pickled = (folder / names[0]).with_suffix("").exists() or (folder / "cifar-10-batches-py").exists()
    note = "; the Python version in that folder consists of pickles, which are not read" if pickled else ""
    expected = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    raise InputError(f"{folder} contains neither {expected} nor {packed.name}{note}; {GET}")


def _joined(batches: list[tuple[str, Tensor]], folder: Path) -> Tensor:
    # the original batches have equal sizes, so unequal sizes reveal a batch that was cut off between two images
    if len({len(batch) for _, batch in batches}) > 1:
        counts = ", ".join(f"{name} {len(batch)}" for name, batch in batches)
        raise InputError(f"{folder}: all batches must contain the same number of images, got {counts}; {GET}")
    return torch.cat([batch for _, batch in batches])


def read_batch(path: Path) -> Tensor:
    """Read one binary batch, uint8 `(n, 3, 32, 32)`; the labels are validated and dropped.

    Raises:
        InputError: If the file is not a binary batch of CIFAR-10.
    """
    with open_checked(path) as file:
        size = size_of(file)
        if size == 0 or size % RECORD:
            raise InputError(
                f"{path} is truncated or not a batch of CIFAR-10: its size must be a multiple of {RECORD} bytes "
                f"({10_000 * RECORD} for the original batches), got {size}"
            )
        memory.require(size, str(path))
        raw = np.frombuffer(bytearray(file.read(size)), dtype=np.uint8)
    if len(raw) != size:
        raise InputError(f"{path} cannot be read: it ends after {len(raw)} of {size} bytes")
    records = raw.reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise InputError(f"{path} is not a batch of CIFAR-10: labels must be 0 … 9, got {records[:, 0].max()}")
    return torch.from_numpy(records[:, 1:].reshape(-1, *EVENT))
