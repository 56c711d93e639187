r"""The files of CIFAR-10: binary batches as they are published, or `train.npz` and `test.npz`; uint8 pixels `(n, 3, 32, 32)`.

A record of a batch is one byte of label, then 3072 of red, green and blue planes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from . import memory
from .pixels import read_npz
from .reading import opened, size_of

EVENT = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes per image of a binary batch
BATCHES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}

GET = (
    "get 'CIFAR-10 binary version (suitable for C programs)' from the CIFAR-10 page "
    "(https://www.cs.toronto.edu/~kriz/cifar.html) and unpack it there"
)


def images(folder: str | Path, split: str = "train") -> Tensor:
    """The images of a split, uint8 `(n, 3, 32, 32)`; `folder` holds binary batches or `train.npz`/`test.npz`."""
    if split not in BATCHES:
        raise InputError(f"unknown split {split!r} of CIFAR-10; known: {', '.join(BATCHES)}")
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"there is no folder {str(folder)!r} with CIFAR-10; {GET}")
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
            raise InputError(f"{packed}: images of CIFAR-10 are (3, 32, 32), these are {tuple(pixels.shape[1:])}")
        return pixels
    if len(missing) < len(names):
        raise InputError(f"{folder} lacks {', '.join(missing)} of CIFAR-10's {len(names)} training batches; {GET}")
    pickled = (folder / names[0]).with_suffix("").exists() or (folder / "cifar-10-batches-py").exists()
    note = "; what is there is the Python version, whose pickles are never read" if pickled else ""
    expected = names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}"
    raise InputError(f"{folder} holds neither {expected} nor {packed.name}{note}; {GET}")


def _joined(batches: list[tuple[str, Tensor]], folder: Path) -> Tensor:
    # the original batches are of one size: a batch cut off between two images shows here
    if len({len(batch) for _, batch in batches}) > 1:
        counts = ", ".join(f"{name} {len(batch)}" for name, batch in batches)
        raise InputError(f"{folder}: the batches should hold equally many images, they hold {counts}; {GET}")
    return torch.cat([batch for _, batch in batches])


def read_batch(path: Path) -> Tensor:
    """One binary batch, uint8 `(n, 3, 32, 32)`; the labels are checked and left out."""
    with opened(path) as file:
        size = size_of(file)
        if size == 0 or size % RECORD:
            raise InputError(
                f"{path} is truncated or something else: {size} bytes, a batch of CIFAR-10 is a multiple of {RECORD} "
                f"(the original ones are {10_000 * RECORD})"
            )
        memory.require(size, str(path))
        raw = np.frombuffer(bytearray(file.read(size)), dtype=np.uint8)
    if len(raw) != size:
        raise InputError(f"{path} cannot be read: it ends after {len(raw)} of {size} bytes")
    records = raw.reshape(-1, RECORD)
    if records[:, 0].max() > 9:
        raise InputError(f"{path} is not a batch of CIFAR-10: it holds label {records[:, 0].max()}, labels are 0 … 9")
    return torch.from_numpy(records[:, 1:].reshape(-1, *EVENT))
