r"""Observations from acquired k-space. Nothing is simulated, but a higher acceleration removes measured columns.

For each volume, the noise covariance of the coils is estimated from the corners of k-space, and data and coil maps are
whitened with it. The image is cropped to the window, exactly along the readout direction; along the phase-encoding
direction only if all columns were measured. Then everything is scaled so that the largest value of the volume is 2.

A complex image is x = 2u/max, so y becomes 2y/max. A magnitude image is x = 4u/max − 2, so y becomes 4y/max − 2A(1),
which is exact if the coil maps carry the phase of the image, as estimated maps do. A magnitude model assumes that the
phase does not vary below the resolution of the maps; complex images need no such assumption.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..operators.centred import centred_ifft2
from .coils import (
    as_maps,
    corner_samples,
    crop_kspace,
    crop_maps,
    estimate_maps,
    measured_columns,
    noise_covariance,
    read_maps,
    whitening,
)
from .fastmri_files import Volume
from .kspace import central, column_masks, operator, take_columns
from .kspace_cache import Slices


@dataclass
class Survey:
    """Properties of a volume that apply to all of its slices.

    Attributes:
        columns: `(W,)`. True in measured columns.
        size: Height and width of the image window.
        whiten: `(c, c)`, complex. The whitening matrix of the coils.
        sigma: Noise level after whitening, in the units of the file.
        maximum: The largest value of the volume.
    """

    columns: Tensor
    size: tuple[int, int]
    whiten: Tensor
    sigma: float
    maximum: float


def acquired_slices(
    volume: Volume,
    index: Tensor,
    *,
    accel: float,
    sigma: float | None,
    seed: int,
    complex: bool,
    window: tuple[int, int] | None,
    coils: str | None,
    calibration: int,
    chunk: int,
) -> Iterator[Slices]:
    """Read the selected slices of a volume, `chunk` at a time.

    Args:
        volume: The volume.
        index: `(slices,)`. Addresses of the random numbers of the slices.
        accel: Acceleration R; 1 keeps every measured column.
        sigma: Noise level on the scale of x; None estimates it from the corners of k-space.
        seed: Seed of the column masks.
        complex: Whether x is a complex image.
        window: Height and width of the image; None for those of the file's reconstruction.
        coils: `estimate`, a file or folder of maps, or `dataset NAME`; None for single-coil data.
        calibration: Width of the central k-space from which maps are estimated.
        chunk: Number of slices in memory at a time.

    Raises:
        InputError: If the settings do not fit the file.
    """
    if coils is None and volume.coils is not None:
        raise InputError(f"{volume.path} is multi-coil: set data.coils to 'estimate', a file of maps or 'dataset NAME'")
    if coils is None and not complex:
        raise InputError(
            "acquired k-space belongs to a complex image: set data.complex = true, or data.coils = estimate to model "
            "the phase by that of a low-resolution image"
        )
    survey = survey_volume(volume, window, sigma is None, chunk)
    scale = (2 if complex else 4) / survey.maximum
    level = survey.sigma * scale if sigma is None else sigma
    for first in range(volume.first, volume.last, chunk):
        last = min(first + chunk, volume.last)
        where = index[first - volume.first : last - volume.first]
        kspace = torch.einsum("dc,nchw->ndhw", survey.whiten.to(torch.complex64), volume.kspace(first, last))
        kspace = crop_kspace(kspace, *survey.size)
        own = survey.columns if survey.size[1] == len(survey.columns) else torch.ones(survey.size[1], dtype=torch.bool)
        maps = None
        if coils is not None:
            # the maps must not depend on removed columns, so they use only columns that every mask contains
            always = own & central(survey.size[1], accel)
            maps = torch.view_as_real(
                _maps(volume, survey, kspace, always, coils, calibration, first, last).contiguous()
            )
        masks = own & column_masks(where, survey.size[1], accel, seed)
        y = torch.view_as_real(kspace if maps is not None else kspace[:, 0])
        if complex:
            y = scale * y
        else:
            ones = torch.ones(len(y), 1, *survey.size)
            y = scale * y.unsqueeze(1) - 2 * operator(masks, maps, complex)(ones)
        yield Slices(take_columns(y, masks), masks, torch.full((len(masks),), level, dtype=torch.float64), maps)


def survey_volume(volume: Volume, window: tuple[int, int] | None, estimate: bool, chunk: int) -> Survey:
    """Determine the measured columns, the noise and the maximum of the selected slices, `chunk` of them at a time.

    Args:
        window: Height and width of the image; None for those of the file's reconstruction.
        estimate: Whether to estimate the noise covariance; otherwise the data are not whitened.
        chunk: Number of slices in memory at a time.
    """
    full = volume.require_kspace()[-2:]
    columns, corners, top = torch.zeros(full[1], dtype=torch.bool), [], 0.0
    stated = volume.mask()
    for first in range(volume.first, volume.last, chunk):
        kspace = volume.kspace(first, min(first + chunk, volume.last))
        columns |= measured_columns(kspace, stated)
        if not columns.any():
            raise InputError(f"{volume.path}: k-space is zero everywhere")
        corners.append(corner_samples(kspace, columns))
        if volume.maximum is None:
            top = max(top, float(centred_ifft2(kspace).abs().square().sum(1).sqrt().max()))
    count = len(corners[0])
    whiten, level = torch.eye(count, dtype=torch.complex128), 0.0
    if estimate:
        whiten, level = whitening(noise_covariance(torch.cat(corners, 1), str(volume.path)))
    return Survey(columns, _size(volume, columns, window), whiten, level, volume.maximum or top)


def _size(volume: Volume, columns: Tensor, window: tuple[int, int] | None) -> tuple[int, int]:
    height, width = volume.names["kspace"][-2:]
    whole = bool(columns.all())
    if window is None:
        rows, wide = volume.reconstructed or (height, width)
        return min(rows, height), min(wide, width) if whole else width
    if window[0] > height or window[1] > width:
        raise InputError(f"{volume.path}: a window of {window[0]}×{window[1]} does not fit k-space of {height}×{width}")
    if not whole and window[1] != width:
        raise InputError(
            f"{volume.path}: the scanner measured {int(columns.sum())} of {count_of(width, 'column')}, so the image "
            f"cannot be cropped in that direction; set data.size to [{window[0]}, {width}]"
        )
    return window


def _maps(
    volume: Volume, survey: Survey, kspace: Tensor, own: Tensor, coils: str, calibration: int, first: int, last: int
) -> Tensor:
    """Coil maps for whitened data, complex `(m, c, H, W)`; maps from a file are whitened here."""
    name = str(volume.path)
    if coils == "estimate":
        return estimate_maps(kspace, own, calibration, name)
    if coils.startswith("dataset "):
        dataset = coils.removeprefix("dataset ").strip()
        if dataset not in volume.names:
            raise InputError(
                f"{name} has no dataset {dataset!r} of coil maps; its datasets are {', '.join(volume.names)}"
            )
        shared = len(volume.names[dataset]) == 3
        array = volume.read(dataset, 0, volume.names[dataset][0]) if shared else volume.read(dataset, first, last)
        maps = as_maps(array, f"{name}: {dataset}", 0, last - first)
    else:
        maps = read_maps(coils, volume.path.stem, first, last)
    if maps.shape[1] != kspace.shape[1]:
        raise InputError(f"{name}: maps of {count_of(maps.shape[1], 'coil')} for k-space of {kspace.shape[1]}")
    height, width = volume.names["kspace"][-2:]
    maps = crop_maps(maps, (height, width), survey.size, name)
    return torch.einsum("dc,nchw->ndhw", survey.whiten.to(torch.complex64), maps).expand(len(kspace), -1, -1, -1)
