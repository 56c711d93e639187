r"""Corrupted CIFAR-10, the paper's second experiment: 32×32 colour photographs, a fraction of whose pixels was never measured.

The images are read from a folder that holds either the original binary batches (one byte of label, then 3072 of red, green
and blue planes per image), or `train.npz` and `test.npz` with an array `images`. Pixels 0 … 255 become x = pixel/64 − 2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..files import memory
from ..files.pixels import read_npz
from ..files.reading import opened, size_of
from ..observations import Observations, Problem
from ..operators import Mask

EVENT = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes per image of a binary batch
BATCHES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
RANGE = (-2.0, 255 / 64 - 2)  # the values of x that are pixel 0 and pixel 255
# images whose random numbers are made at a time: their integers stay in cache, and are too few for torch to share out among threads,
# which cost a machine of 16 cores more than a minute
CHUNK = 32

GET = (
    "get 'CIFAR-10 binary version (suitable for C programs)' from the CIFAR-10 page "
    "(https://www.cs.toronto.edu/~kriz/cifar.html) and unpack it there"
)


def from_uint8(pixels: Tensor) -> Tensor:
    """Pixels 0 … 255 on the scale of the experiment, x = pixel/64 − 2, in float32."""
    return pixels.float() / 64 - 2


def to_uint8(x: Tensor) -> Tensor:
    """The nearest pixels 0 … 255; what lies outside is clamped."""
    return ((x + 2) * 64).round().clamp(0, 255).to(torch.uint8)


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


def cifar10(
    seed: int,
    folder: str = "data/cifar10",
    missing: float = 0.75,
    sigma: float = 1e-3,
    n: int | None = None,
    split: str = "train",
) -> Problem:
    """Every pixel is missing, all channels together, with probability `missing`; the others carry noise of std `sigma`.

    n: only the first n images. Mask and noise of image i are functions of (seed, split, i).
    With `missing` and `sigma` both 0, the images themselves.
    """
    if not 0 <= missing < 1:
        raise InputError(f"data.missing must lie in [0, 1), got {missing}")
    pixels = images(folder, split)
    if n is not None and not (isinstance(n, int) and 1 <= n <= len(pixels)):
        raise InputError(f"data.n must be an integer from 1 to {len(pixels)}, the images of {split!r}; got {n}")
    x = from_uint8(pixels[:n])
    if missing == sigma == 0:
        return Problem(Observations.clean(x), x, range=RANGE)
    # the split is part of the address: the masks of the test images are not those of the first training images
    masks, noise = Stream(seed, f"cifar10 {split} mask"), Stream(seed, f"cifar10 {split} noise")
    mask = torch.empty(len(x), 1, *EVENT[1:], dtype=torch.bool)
    y = torch.empty_like(x)
    for index in torch.arange(len(x)).split(CHUNK):
        part = slice(int(index[0]), int(index[-1]) + 1)
        mask[part] = masks.uniform(index, (1, *EVENT[1:])) >= missing
        torch.add(x[part], noise.normal(index, EVENT), alpha=sigma, out=y[part])
    return Problem(Observations(y, Mask(mask), sigma=sigma), x, range=RANGE)
