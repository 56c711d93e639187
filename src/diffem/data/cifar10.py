r"""Corrupted CIFAR-10, the paper's second experiment: 32×32 colour photographs with deleted pixels.

The images are read from a folder that contains either the original binary batches (for each image one byte with the
label, then 3072 bytes with the red, green and blue planes), or `train.npz` and `test.npz` with an array `images`.
Pixels 0 … 255 become x = pixel/64 − 2.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .. import memory
from ..errors import InputError
from ..operators import Mask
from ..randomness import Stream
from ..runs.reading import opened, size_of
from .observations import Observations
from .pixels import read_npz
from .sources import Problem

EVENT = (3, 32, 32)
RECORD = 1 + 3 * 32 * 32  # bytes per image of a binary batch
BATCHES = {"train": tuple(f"data_batch_{k}.bin" for k in range(1, 6)), "test": ("test_batch.bin",)}
RANGE = (-2.0, 255 / 64 - 2)  # the values of x that are pixel 0 and pixel 255
# Images whose random numbers are generated at a time. Their integers fit into the processor's cache, and they are too
# few for torch to use several threads, which took a minute longer on 16 cores.
CHUNK = 32

GET = (
    "get 'CIFAR-10 binary version (suitable for C programs)' from the CIFAR-10 page "
    "(https://www.cs.toronto.edu/~kriz/cifar.html) and unpack it there"
)


def from_uint8(pixels: Tensor) -> Tensor:
    """Convert pixels 0 … 255 to x = pixel/64 − 2, in float32."""
    return pixels.float() / 64 - 2


def to_uint8(x: Tensor) -> Tensor:
    """Round x to the nearest pixels; values outside 0 … 255 are clamped."""
    return ((x + 2) * 64).round().clamp(0, 255).to(torch.uint8)


def images(folder: str | Path, split: str = "train") -> Tensor:
    """Read the images of a split.

    Args:
        folder: A folder with the binary batches, or with `train.npz` and `test.npz`.
        split: `train` or `test`.

    Returns:
        Pixels, uint8 `(n, 3, 32, 32)`.

    Raises:
        InputError: If a file is missing or corrupted.
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
    with opened(path) as file:
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


def cifar10(
    seed: int,
    folder: str = "data/cifar10",
    missing: float = 0.75,
    sigma: float = 1e-3,
    n: int | None = None,
    split: str = "train",
) -> Problem:
    """Observe the images with random missing pixels and noise.

    Mask and noise of image i depend only on (seed, split, i). If `missing` and `sigma` are both 0, the observations are
    the clean images.

    Args:
        seed: Seed of masks and noise.
        folder: See `images`.
        missing: Probability that a pixel is missing, in all channels.
        sigma: Noise level of the measured pixels.
        n: Number of images, the first ones. Default: all.
        split: `train` or `test`.
    """
    if not 0 <= missing < 1:
        raise InputError(f"data.missing must lie in [0, 1), got {missing}")
    pixels = images(folder, split)
    if n is not None and not (isinstance(n, int) and 1 <= n <= len(pixels)):
        raise InputError(f"data.n must be an integer from 1 to {len(pixels)}, the number of {split} images, got {n}")
    x = from_uint8(pixels[:n])
    if missing == sigma == 0:
        return Problem(Observations.clean(x), x, range=RANGE)
    # the split is part of the address, so that test images do not get the masks of the first training images
    masks, noise = Stream(seed, f"cifar10 {split} mask"), Stream(seed, f"cifar10 {split} noise")
    mask = torch.empty(len(x), 1, *EVENT[1:], dtype=torch.bool)
    y = torch.empty_like(x)
    for index in torch.arange(len(x)).split(CHUNK):
        part = slice(int(index[0]), int(index[-1]) + 1)
        mask[part] = masks.uniform(index, (1, *EVENT[1:])) >= missing
        torch.add(x[part], noise.normal(index, EVENT), alpha=sigma, out=y[part])
    return Problem(Observations(y, Mask(mask), sigma=sigma), x, range=RANGE)
