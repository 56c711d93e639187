r"""What acquired k-space says about its receivers: noise covariance, sensitivity maps.

- Noise: in the four corners of k-space (the outer sixteenth of rows and of measured columns on each side) the image has next to no signal,
  so the samples n there give Ψ = E[n nᴴ]/2 over the coils, whose diagonal is the variance of real and of imaginary parts.
- Whitening: with Ψ = LLᴴ, s L⁻¹ y has independent noise of standard deviation s in every coil; s is the coils' root-mean-square noise, so
  that data keep their size.
- Maps: the central columns and rows, apodised by a Hann window, give coil images of low resolution; divided by their root sum of squares
  they are smooth maps with Σ|C|² = 1 that carry the coils' phases and the slowly varying phase of the image.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files.arrays import read_array, read_arrays
from ..operators.centred import centred_fft2, centred_ifft2


def measured_columns(kspace: Tensor, stated: np.ndarray | None) -> Tensor:
    """`(W,)`: columns that hold anything and that the file's own mask, if there is one, does not deny. kspace: `(n, c, H, W)`."""
    own = (kspace != 0).flatten(0, -2).any(0)
    return own if stated is None else own & torch.from_numpy(stated)


def corner_samples(kspace: Tensor, columns: Tensor) -> Tensor:
    """Complex samples of the corners, `(c, samples)`. kspace: `(n, c, H, W)`, columns: `(W,)`."""
    height, where = kspace.shape[-2], columns.nonzero().flatten()
    rows, edge = max(1, height // 16), max(1, len(where) // 16)
    outer_rows = torch.cat([torch.arange(rows), torch.arange(height - rows, height)])
    outer_columns = torch.cat([where[:edge], where[-edge:]])
    corners = kspace[:, :, outer_rows][..., outer_columns]
    return corners.movedim(1, 0).flatten(1)


def noise_covariance(samples: Tensor, name: str) -> Tensor:
    """Ψ, complex `(c, c)` in double precision. samples: `(c, samples)`."""
    n = samples.to(torch.complex128)
    psi = n @ n.mH / (2 * n.shape[1])
    smallest = torch.linalg.eigvalsh(psi)[0]
    if not smallest > 1e-12 * psi.diagonal().real.mean():
        raise InputError(
            f"{name}: the corners of k-space hold no noise to estimate its level from (zeros, or coils that depend on each "
            "other); give data.sigma"
        )
    return psi


def whitening(psi: Tensor) -> tuple[Tensor, float]:
    """The matrix s L⁻¹, complex `(c, c)`, and the noise level s afterwards."""
    s = float(psi.diagonal().real.mean().sqrt())
    return s * torch.linalg.inv(torch.linalg.cholesky(psi)), s


def crop_kspace(kspace: Tensor, height: int, width: int) -> Tensor:
    """k-space of the central window of the image; the noise stays white, since both transforms are orthonormal.

    Along an axis that is not cropped nothing changes, so columns that were not measured stay 0 when `width` is the whole width.
    """
    full_height, full_width = kspace.shape[-2:]
    if (height, width) == (full_height, full_width):
        return kspace
    top, left = (full_height - height) // 2, (full_width - width) // 2
    if width == full_width:  # along the readout only
        axes = (-2,)
        image = torch.fft.fftshift(torch.fft.ifft(torch.fft.ifftshift(kspace, axes), dim=-2, norm="ortho"), axes)
        part = torch.fft.ifftshift(image[..., top : top + height, :], axes)
        return torch.fft.fftshift(torch.fft.fft(part, dim=-2, norm="ortho"), axes)
    return centred_fft2(centred_ifft2(kspace)[..., top : top + height, left : left + width])


def estimate_maps(kspace: Tensor, columns: Tensor, calibration: int, name: str) -> Tensor:
    """Maps, complex `(n, c, H, W)`, of k-space `(n, c, H, W)` whose measured columns are `columns` `(W,)`."""
    height, width = kspace.shape[-2:]
    half, centre = calibration // 2, width // 2
    while half > 0 and not bool(columns[max(0, centre - half) : centre + half].all()):
        half -= 1
    if half < 1:
        raise InputError(
            f"{name}: the central columns are not measured, so coil maps cannot be estimated; give data.coils"
        )

    def window(size: int) -> Tensor:
        reach = min(half, size // 2)
        w = torch.zeros(size, dtype=torch.float32)
        # symmetric about the zero frequency at size // 2, and not yet 0 at the last measured column
        offsets = torch.arange(-reach, min(reach, size - size // 2))
        w[size // 2 + offsets] = torch.cos(math.pi * offsets / (2 * (reach + 1))) ** 2
        return w

    low = centred_ifft2(kspace * window(height)[:, None] * window(width))
    total = low.abs().square().sum(-3, keepdim=True).sqrt()
    return low / total.clamp(min=1e-30 + 1e-6 * float(total.max()))


def read_maps(path: str, stem: str, first: int, last: int) -> Tensor:
    """Given maps, complex `(1 or slices, c, h, w)`: from `.npy` or `.npz`, or, in a folder, from the file named like the volume.

    An array `(c, h, w)` serves every slice; `(slices, c, h, w)` has one set per slice of the volume.
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
    """Name, size and time of the files that `read_maps` reads from `path`: what a cache of measurements depends on."""
    place = Path(path)
    files = sorted(place.iterdir()) if place.is_dir() else [place] if place.exists() else []
    return [[file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files]


def as_maps(array: np.ndarray, name: str, first: int, last: int) -> Tensor:
    if array.dtype.kind != "c" or array.ndim not in (3, 4):
        raise InputError(
            f"{name}: coil maps must be complex (c, h, w) or (slices, c, h, w), got {array.dtype} {array.shape}"
        )
    maps = array[None] if array.ndim == 3 else array[first:last]
    if len(maps) not in (1, last - first):
        raise InputError(f"{name}: holds maps for {len(array)} slices, slices {first} to {last - 1} are needed")
    if not np.isfinite(maps).all():
        raise InputError(f"{name}: coil maps hold values that are not finite")
    return torch.from_numpy(np.ascontiguousarray(maps, dtype=np.complex64))


def crop_maps(maps: Tensor, shapes: list[tuple[int, int]], size: tuple[int, int], name: str) -> Tensor:
    """Maps on the image window of `size`; they may be given for it, or for the whole field of view (one of `shapes`)."""
    given = (maps.shape[-2], maps.shape[-1])
    if given == size:
        return maps
    if given not in shapes:
        raise InputError(
            f"{name}: coil maps of {given[0]}×{given[1]} fit neither images of {size[0]}×{size[1]} nor the k-space"
        )
    top, left = (given[0] - size[0]) // 2, (given[1] - size[1]) // 2
    return maps[..., top : top + size[0], left : left + size[1]]
