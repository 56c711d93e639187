r"""Corrupted CIFAR-10, the paper's second experiment: 32×32 colour photographs, a fraction of whose pixels was never measured.

The images are read from a folder that holds either the original binary batches or `train.npz` and `test.npz` with an array `images`
(`files/cifar10.py`). Pixels 0 … 255 become x = pixel/64 − 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..files.cifar10 import EVENT, images
from ..observations import Observations, Problem
from ..operators import Mask

RANGE = (-2.0, 255 / 64 - 2)  # the values of x that are pixel 0 and pixel 255
# images whose random numbers are made at a time: their integers stay in cache, and are too few for torch to share out among threads,
# which cost a machine of 16 cores more than a minute
CHUNK = 32


def from_uint8(pixels: Tensor) -> Tensor:
    """Pixels 0 … 255 on the scale of the experiment, x = pixel/64 − 2, in float32."""
    return pixels.float() / 64 - 2


def to_uint8(x: Tensor) -> Tensor:
    """The nearest pixels 0 … 255; what lies outside is clamped."""
    return ((x + 2) * 64).round().clamp(0, 255).to(torch.uint8)


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
