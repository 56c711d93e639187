"""Simulated accelerated k-space of MR images from a folder, a tar archive or an `.npz` file.

Magnitude images (JPEG or PNG files, or an array `(n, H, W)`) are one channel, x = 4u − 2 in [−2, 2]. Complex images (an
array `(n, 2, H, W)`) are two channels, x = 2u. Training and held-out slices are contiguous blocks of every folder with
a gap between them. Collections often contain repeated and rescaled images, so training slices that resemble a held-out
slice are left out.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..core.counting import count_of
from ..core.errors import InputError
from ..files.writing import write_bytes
from ..observations import Problem
from .image_files import ImageSet, read_images, to_npz
from .kspace import Acquisition
from .kspace_cache import Slices, cache_kspace

CHUNK = 32  # slices in memory at a time
THUMB = 56  # side of the thumbnails that are compared
LARGEST = 8192  # largest side of a slice


def mri_images(
    seed: int,
    path: str = "",
    size: int | None = None,
    accel: float = 6.0,
    sigma: float = 0.01,
    part: str = "train",
    n: int | None = None,
    heldout: float = 0.03,
    gap: int = 16,
    resemblance: float = 0.6,
    scale: float | None = None,
    cache: str | None = None,
) -> Problem:
    """Observations of images, whose random numbers are addressed by the position in file order.

    Args:
        seed: Seed of column masks and noise.
        path: A folder, a tar archive or an `.npz` file.
        size: Side to which images are resized. Default: their own size.
        accel: Acceleration R.
        sigma: Noise level of real and imaginary parts.
        part: "train", "heldout" or "all".
        n: Number of slices, spread evenly over the part. Default: all.
        heldout: Fraction of each folder that is held out, at its end.
        gap: Number of slices before it that belong to neither part.
        resemblance: Training slices whose correlation with a held-out slice exceeds this are left out.
        scale: Pixel value that corresponds to u = 1. Default: 255 for bytes, 4095 for signed 16-bit integers, the
            largest magnitude otherwise. Larger magnitudes are clipped if it is given, otherwise refused.
        cache: See `fastmri`.

    Raises:
        InputError: If a setting is invalid or the images cannot be read.
    """
    if size is not None and not (isinstance(size, int) and size > 0):
        raise InputError(f"data.size must be a positive integer, got {size!r}")
    if size is not None and size > LARGEST:
        raise InputError(f"data.size must be at most {LARGEST}, got {size}")
    acquisition = Acquisition(accel, sigma, seed)
    stamp = Path(path).stat().st_mtime_ns if Path(path).exists() else 0
    images, division = _divided(path, stamp, heldout, gap, resemblance)
    chosen = division.part(part)
    if n is not None:
        if not (isinstance(n, int) and 0 < n <= len(chosen)):
            raise InputError(
                f"data.n must be from 1 to {len(chosen)}, the number of slices of part {part!r}, got {n!r}"
            )
        chosen = chosen[(torch.arange(n) * len(chosen)) // n]
    one, clipped = images.unit(scale), images.clipped(scale)

    def parts() -> Iterator[Slices]:
        for rows in chosen.split(CHUNK):
            x = to_samples(images.pixels[rows.numpy()], one, size)
            columns, masks = acquisition.measure(x, rows)
            yield Slices(columns, masks, torch.full((len(x),), acquisition.sigma, dtype=torch.float64), None, x)

    height, width = (size, size) if size else images.pixels.shape[-2:]
    made_from = {  # the cache key
        "source": "mri_images", "accel": accel, "sigma": sigma, "seed": seed, "size": size, "scale": one,
        "images": images.digest(), "rows": hashlib.sha256(chosen.numpy().tobytes()).hexdigest(),
    }  # fmt: skip
    kspace = cache_kspace(parts(), images.complex, len(chosen) * height * width * 8, cache, made_from)
    kind = "complex" if images.complex else "magnitude"
    about = (
        f"{count_of(len(chosen), 'slice')} ({part}) of {height}×{width}, {kind}, R = {accel:g}, noise {sigma:g}; "
        f"{division}"
    )
    if clipped:
        about += f"; {clipped:.2%} of the pixels are above data.scale and are clipped"
    return Problem(kspace.observations(), kspace.reference, about=about)


@lru_cache(maxsize=1)  # `diffem mri` measures the same images at several accelerations
def _divided(path: str, stamp: int, heldout: float, gap: int, resemblance: float) -> tuple[ImageSet, Division]:
    images = read_images(path)
    return images, divide(images, heldout, gap, resemblance)


def to_samples(pixels: np.ndarray, one: float, size: int | None) -> Tensor:
    """Convert images to samples of x.

    Args:
        pixels: `(m, H, W)` or `(m, 2, H, W)`.
        one: Pixel value that corresponds to u = 1.
        size: Side to which images are resized; None for no resizing.

    Returns:
        `(m, 1 or 2, size, size)`.
    """
    u = torch.from_numpy(pixels.astype(np.float32)) / one
    complex = u.ndim == 4
    u = u if complex else u.unsqueeze(1)
    if size is not None and tuple(u.shape[-2:]) != (size, size):
        u = functional.interpolate(u, size=(size, size), mode="bicubic", antialias=True, align_corners=False)
    return 2 * u if complex else 4 * u.clamp(0, 1) - 2


@dataclass
class Division:
    """Division of the images into a training part and a held-out part.

    Attributes:
        train: Positions in file order of the training images.
        heldout: Positions in file order of the held-out images.
        copies: Number of exact copies that were left out.
        between: Number of images in the gaps.
        alike: Number of training images that were left out because they resemble a held-out image.
    """

    train: Tensor
    heldout: Tensor
    copies: int
    between: int
    alike: int

    def part(self, name: str) -> Tensor:
        """Positions of "train", "heldout" or "all"; raises `InputError` if there are none."""
        if name not in ("train", "heldout", "all"):
            raise InputError(f"data.part must be 'train', 'heldout' or 'all', got {name!r}")
        rows = torch.cat([self.train, self.heldout]).sort().values if name == "all" else getattr(self, name)
        if len(rows) == 0:
            raise InputError(f"data.part {name!r} is empty: {self}")
        return rows

    def __str__(self) -> str:
        return (
            f"{len(self.train)} for training, {len(self.heldout)} held out; left out: "
            f"{count_of(self.copies, 'exact copy', 'exact copies')}, {self.between} in the gaps, {self.alike} that "
            f"resemble{'s' if self.alike == 1 else ''} held-out slices"
        )


def divide(images: ImageSet, heldout: float, gap: int, resemblance: float) -> Division:
    """Divide the images; see `mri_images` for the arguments."""
    if not 0 <= heldout < 1 or not gap >= 0 or not 0 < resemblance <= 1:
        raise InputError(
            f"data.heldout must lie in [0, 1), data.gap must be at least 0 and data.resemblance must lie in (0, 1], "
            f"got {heldout}, {gap}, {resemblance}"
        )
    seen: set[bytes] = set()
    fresh = torch.zeros(len(images.pixels), dtype=torch.bool)
    for i, image in enumerate(images.pixels):
        key = hashlib.sha256(np.ascontiguousarray(image).data).digest()
        fresh[i] = key not in seen
        seen.add(key)
    train, held, between = [], [], 0
    for group in np.unique(images.groups):
        rows = torch.from_numpy(np.flatnonzero(images.groups == group))
        rows = rows[fresh[rows]]
        count = round(heldout * len(rows))
        apart = min(gap if count else 0, len(rows) - count)
        between += apart
        held.append(rows[len(rows) - count :])
        train.append(rows[: len(rows) - count - apart])
    training, holding = torch.cat(train).sort().values, torch.cat(held).sort().values
    alike = torch.zeros(len(training), dtype=torch.bool)
    if len(holding) and len(training):
        features = fingerprints(images)
        for start in range(0, len(training), 1024):
            part = training[start : start + 1024]
            alike[start : start + 1024] = (features[part] @ features[holding].T).amax(1) > resemblance
    return Division(training[~alike], holding, int((~fresh).sum()), between, int(alike.sum()))


def fingerprints(images: ImageSet) -> Tensor:
    """Features of unit length, `(n, features)`, whose dot products measure the resemblance of images.

    They are thumbnails from which the mean and slow variations are subtracted.
    """
    parts = []
    for start in range(0, len(images.pixels), 256):
        u = torch.from_numpy(images.pixels[start : start + 256].astype(np.float32))
        u = torch.hypot(u[:, 0], u[:, 1]) if u.ndim == 4 else u
        small = functional.adaptive_avg_pool2d(u.unsqueeze(1), THUMB)
        slow = functional.avg_pool2d(functional.pad(small, (4, 4, 4, 4), mode="replicate"), 9, 1)
        flat = (small - slow).flatten(1)
        flat = flat - flat.mean(1, keepdim=True)
        parts.append(flat / flat.norm(dim=1, keepdim=True).clamp(min=1e-12))
    return torch.cat(parts)


def prepare(path: str, out: Any, size: int | None = None) -> str:
    """Decode a folder or archive of images into an `.npz` file, and return a description of its content."""
    images = read_images(path, size)
    write_bytes(out, to_npz(images))
    count, size_text = len(images.pixels), "×".join(map(str, images.pixels.shape[-2:]))
    return f"{count_of(count, 'image')} of {size_text} in {count_of(len(np.unique(images.groups)), 'group')}"


def expected_size_of_mri_images(options: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape of a sample and number of observations, for estimates of memory and time."""
    size = int(options.get("size") or 320)
    return (1, size, size), int(options.get("n") or 4_000)  # a typical collection
