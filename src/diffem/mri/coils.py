r"""Noise covariance and sensitivity maps of receiver coils, estimated from acquired k-space.

- Noise: the four corners of k-space (the outer sixteenth of the rows and of the measured columns on each side) contain
  almost no signal. The samples n there give the covariance of the coils Ψ = E[n nᴴ]/2, whose diagonal is the variance
  of the real and of the imaginary parts.
- Whitening: with Ψ = LLᴴ, s L⁻¹ y has independent noise with standard deviation s in every coil. s is the
  root-mean-square noise of the coils, so that the data keep their scale.
- Maps: the central columns and rows, multiplied by a Hann window, give low-resolution coil images. Divided by their
  root sum of squares they are smooth maps with Σ|C|² = 1 that carry the coils' phases and the slowly varying phase of
  the image.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..files.arrays import read_array, read_arrays
from ..operators.centred import centred_fft2, centred_ifft2
from .kspace import centre_crop


def measured_columns(kspace: Tensor, stated: np.ndarray | None) -> Tensor:
    """Find the measured columns: those with nonzero values that the mask of the file, if it has one, contains.

    Args:
        kspace: `(n, c, H, W)`.
        stated: `(W,)`. The mask of the file, or None.

    Returns:
        `(W,)`. True in measured columns.
    """
    own = (kspace != 0).flatten(0, -2).any(0)
    return own if stated is None else own & torch.from_numpy(stated)


def corner_samples(kspace: Tensor, columns: Tensor) -> Tensor:
    """Complex samples in the corners of k-space, `(c, samples)`.

    Args:
        kspace: `(n, c, H, W)`.
        columns: `(W,)`. True in measured columns.
    """
    height, where = kspace.shape[-2], columns.nonzero().flatten()
    rows, edge = max(1, height // 16), max(1, len(where) // 16)
    outer_rows = torch.cat([torch.arange(rows), torch.arange(height - rows, height)])
    outer_columns = torch.cat([where[:edge], where[-edge:]])
    corners = kspace[:, :, outer_rows][..., outer_columns]
    return corners.movedim(1, 0).flatten(1)


def noise_covariance(samples: Tensor, name: str) -> Tensor:
    """Noise covariance Ψ of the coils, complex `(c, c)` in double precision.

    Args:
        samples: `(c, samples)`. Complex samples without signal.
        name: Name of the file in the error message.

    Raises:
        InputError: If Ψ is singular.
    """
    n = samples.to(torch.complex128)
    psi = n @ n.mH / (2 * n.shape[1])
    smallest = torch.linalg.eigvalsh(psi)[0]
    if not smallest > 1e-12 * psi.diagonal().real.mean():
        raise InputError(
            f"{name}: the noise level cannot be estimated from the corners of k-space (they are zero, or coils are "
            "linearly dependent); set data.sigma"
        )
    return psi


def whitening(psi: Tensor) -> tuple[Tensor, float]:
    """The whitening matrix s L⁻¹, complex `(c, c)`, and the noise level s of whitened data."""
    s = float(psi.diagonal().real.mean().sqrt())
    return s * torch.linalg.inv(torch.linalg.cholesky(psi)), s


def crop_kspace(kspace: Tensor, height: int, width: int) -> Tensor:
    """k-space of the central window of the image. White noise stays white, because the transforms are orthonormal.

    An axis that is not cropped is not changed: unmeasured columns stay 0 if `width` is the full width.
    """
    full_height, full_width = kspace.shape[-2:]
    if (height, width) == (full_height, full_width):
        return kspace
    if width == full_width:  # along the readout only
        axes = (-2,)
        image = torch.fft.fftshift(torch.fft.ifft(torch.fft.ifftshift(kspace, axes), dim=-2, norm="ortho"), axes)
        part = torch.fft.ifftshift(centre_crop(image, height, width), axes)
        return torch.fft.fftshift(torch.fft.fft(part, dim=-2, norm="ortho"), axes)
    return centred_fft2(centre_crop(centred_ifft2(kspace), height, width))


def estimate_maps(kspace: Tensor, columns: Tensor, calibration: int, name: str) -> Tensor:
    """Estimate coil maps from the centre of k-space.

    Args:
        kspace: `(n, c, H, W)`.
        columns: `(W,)`. True in measured columns.
        calibration: Width of the central part, at most; it shrinks until all of its columns are measured.
        name: Name of the file in the error message.

    Returns:
        Complex maps, `(n, c, H, W)`.

    Raises:
        InputError: If the central columns are not measured.
    """
    height, width = kspace.shape[-2:]
    half, centre = calibration // 2, width // 2
    while half > 0 and not bool(columns[max(0, centre - half) : centre + half].all()):
        half -= 1
    if half < 1:
        raise InputError(
            f"{name}: the central columns are not measured, so coil maps cannot be estimated; set data.coils"
        )

    def window(size: int) -> Tensor:
        reach = min(half, size // 2)
        w = torch.zeros(size, dtype=torch.float32)
        # symmetric about the zero frequency at size // 2, and still positive at the last measured column
        offsets = torch.arange(-reach, min(reach, size - size // 2))
        w[size // 2 + offsets] = torch.cos(math.pi * offsets / (2 * (reach + 1))) ** 2
        return w

    low = centred_ifft2(kspace * window(height)[:, None] * window(width))
    total = low.abs().square().sum(-3, keepdim=True).sqrt()
    return low / total.clamp(min=1e-30 + 1e-6 * float(total.max()))


def read_maps(path: str, stem: str, first: int, last: int) -> Tensor:
    """Read coil maps for slices first … last − 1 from a file.

    Args:
        path: A `.npy` or `.npz` file, or a folder with a file `stem.npy` or `stem.npz`. The array has shape `(c, h,
            w)`, for all slices, or `(slices, c, h, w)`.
        stem: Name of the volume.
        first: First slice.
        last: One after the last slice.

    Returns:
        Complex maps, `(1 or slices, c, h, w)`.
    """
    file = Path(path)
    if file.is_dir():
        candidates = [file / f"{stem}{suffix}" for suffix in (".npy", ".npz")]
        file = next((candidate for candidate in candidates if candidate.is_file()), candidates[0])
    try:
        array = next(iter(read_arrays(file).values())) if file.suffix == ".npz" else read_array(file)
    except InputError as error:
        raise InputError(f"data.coils: {error}") from None
    return as_maps(array, str(file), first, last)


def maps_identity(path: str) -> list[list[Any]]:
    """Name, size and modification time of the map files in `path`, which are part of the cache key."""
    place = Path(path)
    files = sorted(place.iterdir()) if place.is_dir() else [place] if place.exists() else []
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def as_maps(array: np.ndarray, name: str, first: int, last: int) -> Tensor:
    """Validate an array of coil maps and select slices first … last − 1; see `read_maps`."""
    if array.dtype.kind != "c" or array.ndim not in (3, 4):
        raise InputError(
            f"{name}: coil maps must be complex (c, h, w) or (slices, c, h, w), got {array.dtype} {array.shape}"
        )
    maps = array[None] if array.ndim == 3 else array[first:last]
    if len(maps) not in (1, last - first):
        raise InputError(
            f"{name}: slices {first} to {last - 1} need coil maps, the file has maps for "
            f"{count_of(len(array), 'slice')}"
        )
    if not np.isfinite(maps).all():
        raise InputError(f"{name}: coil maps contain values that are not finite")
    return torch.from_numpy(np.ascontiguousarray(maps, dtype=np.complex64))


def crop_maps(maps: Tensor, full: tuple[int, int], size: tuple[int, int], name: str) -> Tensor:
    """Crop coil maps to the image window.

    Args:
        maps: `(..., h, w)`, for the window or for the whole field of view.
        full: Height and width of the field of view.
        size: Height and width of the window.
        name: Name of the file in the error message.
    """
    given = (maps.shape[-2], maps.shape[-1])
    if given == size:
        return maps
    if given != full:
        raise InputError(
            f"{name}: coil maps of {given[0]}×{given[1]} fit neither images of {size[0]}×{size[1]} nor the k-space"
        )
    return centre_crop(maps, *size)
