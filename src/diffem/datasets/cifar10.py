r"""Corrupted CIFAR-10, the paper's second experiment: 32×32 colour photographs with deleted pixels.

`files/cifar10.py` reads the images. Pixels 0 … 255 become x = pixel/64 − 2.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..files.cifar10 import EVENT, images
from ..observations import Observations, Problem
from ..operators import Mask

RANGE = (-2.0, 255 / 64 - 2)  # the values of x that are pixel 0 and pixel 255
# Images whose random numbers are generated at a time. Their integers fit into the processor's cache, and they are too
# few for torch to use several threads, which took a minute longer on 16 cores.
CHUNK = 32


def from_uint8(pixels: Tensor) -> Tensor:
    """Convert pixels 0 … 255 to x = pixel/64 − 2, in float32."""
    return pixels.float() / 64 - 2


def to_uint8(x: Tensor) -> Tensor:
    """Round x to the nearest pixels; values outside 0 … 255 are clamped."""
    return ((x + 2) * 64).round().clamp(0, 255).to(torch.uint8)


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
        folder: See `files.cifar10.images`.
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


def expected_size_of_cifar10(options: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape of a sample and number of observations, for estimates of memory and time."""
    return EVENT, options.get("n") or {"train": 50_000, "test": 10_000}.get(options.get("split", "train"), 50_000)
