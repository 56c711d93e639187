"""Accelerated k-space of fastMRI volumes as they are published; the paper's third experiment.

In the mode `simulated`, which the paper uses, the images are the truth: their k-space is measured in random columns,
and noise is added. Magnitude images come from a reconstruction in the file, complex images from its k-space. In the
mode `acquired` the k-space in the file is the measurement; see `acquired.py`.

A magnitude image u is one channel, x = 4u/max − 2 in [−2, 2]; a complex image is two channels, x = 2u/max. The maximum
is that of the volume.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..observations import Problem
from ..operators.centred import centred_ifft2
from .acquired import acquired_slices
from .coils import crop_kspace, estimate_maps, maps_identity, measured_columns, read_maps
from .fastmri_files import RECONSTRUCTIONS, Volume, parse_range, volumes
from .kspace import Acquisition, centre_crop
from .kspace_cache import Slices, cache_kspace

CHUNK = 8  # slices in memory at a time


def fastmri(
    seed: int,
    path: str = "",
    mode: str = "simulated",
    accel: float = 6.0,
    sigma: float | None = None,
    complex: bool = False,
    slices: Any = (10, 40),
    files: Any = (0, None),
    size: int | list[int] | None = None,
    image: str = "auto",
    coils: str | None = None,
    calibration: int = 24,
    cache: str | None = None,
) -> Problem:
    """Observations of the volumes in a folder.

    Args:
        seed: Seed of column masks and noise.
        path: A folder of `*.h5` files, or one such file.
        mode: "simulated" or "acquired".
        accel: Acceleration R of the column masks; in acquired mode, 1 keeps every measured column.
        sigma: Noise level of real and imaginary parts, on the scale of x. Default: 0.01 in simulated mode, estimated
            from the data in acquired mode.
        complex: Two channels (real, imaginary) instead of one magnitude channel.
        slices: Range [first, last) of slices of a volume.
        files: Range [first, last) of volumes of the folder, sorted by name.
        size: Height and width of the image window. Default: those of the reconstruction.
        image: The reconstruction to use: "reconstruction_rss", "reconstruction_esc" or "auto".
        coils: In acquired mode "estimate", a file or folder of maps, or "dataset NAME" for a dataset of the files. In
            simulated mode a file of maps `(c, h, w)` with which the images are measured.
        calibration: Width of the central k-space from which maps are estimated.
        cache: Folder of the cache of measured columns. Default: up to 1.5 GiB of k-space stay in memory, more goes to
            `DIFFEM_CACHE` or the user's cache folder.

    Raises:
        InputError: If a setting is invalid, or a file cannot be read or does not fit the settings.
    """
    if mode not in ("simulated", "acquired"):
        raise InputError(f"data.mode must be 'simulated' or 'acquired', got {mode!r}")
    if image not in ("auto", *RECONSTRUCTIONS):
        raise InputError(f"data.image must be 'auto', {' or '.join(map(repr, RECONSTRUCTIONS))}, got {image!r}")
    found = volumes(path, parse_range(slices, "slices"), parse_range(files, "files"))
    window = _window(size)
    made_from = {  # the cache key
        "source": "fastmri", "seed": seed, "mode": mode, "accel": accel, "sigma": sigma, "complex": complex,
        "size": window, "image": image, "coils": None if coils is None else [coils, maps_identity(coils)],
        "calibration": calibration, "files": [volume.identity() for volume in found],
    }  # fmt: skip
    each: Callable[[Volume, Tensor], Iterator[Slices]]
    maps = None
    if mode == "simulated":
        acquisition = Acquisition(accel, 0.01 if sigma is None else sigma, seed)
        if coils == "estimate":
            raise InputError(
                "data.coils: 'estimate' needs data.mode: acquired; in simulated mode, name a file of maps (c, h, w)"
            )
        maps = None if coils is None else read_maps(coils, "", 0, 1)
        reader = partial(_complex_images, calibration=calibration) if complex else partial(_magnitudes, image=image)
        each = partial(_simulated, acquisition=acquisition, reader=reader, window=window, maps=maps)
    else:
        Acquisition(accel, 1.0 if sigma is None else sigma, seed)  # validates the numbers
        for volume in found:
            volume.require_kspace()
        each = partial(
            acquired_slices, accel=accel, sigma=sigma, seed=seed, complex=complex, window=window, coils=coils,
            calibration=calibration, chunk=CHUNK,
        )  # fmt: skip

    size_of_all = sum(map(len, found)) * _bytes(found[0], window, mode, maps)
    kspace = cache_kspace(_measured(found, each), complex, size_of_all, cache, made_from)
    about = _about(kspace.sigma, found, mode, accel, sigma)
    return Problem(kspace.observations(), kspace.reference, about=about)


def _measured(found: list[Volume], each: Callable[[Volume, Tensor], Iterator[Slices]]) -> Iterator[Slices]:
    """Apply `each` to the volumes and the addresses of their slices; raises `InputError` if volumes differ in size."""
    start, expected = 0, None
    for volume in found:
        for part in each(volume, torch.arange(start, start + len(volume))):
            shape = (tuple(part.columns.shape[1:]), part.masks.shape[1])
            expected = expected or (shape, volume.path)
            if shape != expected[0]:
                raise InputError(
                    f"{volume.path} has k-space {_form(*shape)}, {expected[1]} has {_form(*expected[0])}; "
                    "all files of a run need the same size: set data.size, or use separate runs"
                )
            yield part
        start += len(volume)


def _about(levels: np.ndarray, found: list[Volume], mode: str, accel: float, sigma: float | None) -> str:
    size = f"{count_of(sum(map(len, found)), 'slice')} of {count_of(len(found), 'volume')}"
    text = f"{size}, {mode} k-space at R = {accel:g}; noise level "
    if mode == "simulated" or sigma is not None:
        return text + f"{float(levels[0]):g} on real and imaginary parts, as given"
    low, middle, high = np.percentile(levels, [0, 50, 100])
    return text + (
        f"{middle:.4g} on real and imaginary parts (median; {low:.4g} to {high:.4g} over volumes), "
        "estimated from the corners of k-space"
    )


def _window(size: Any) -> tuple[int, int] | None:
    if size is None:
        return None
    values = [size, size] if isinstance(size, int) else size
    if (
        not isinstance(values, list | tuple)
        or len(values) != 2
        or not all(isinstance(v, int) and v > 0 for v in values)
    ):
        raise InputError(f"data.size must be a positive integer or [height, width], got {size!r}")
    return values[0], values[1]


def _form(columns: tuple[int, ...], width: int) -> str:
    *coils, height, _ = columns
    return "×".join(map(str, [*[c for c in coils if c > 1], height, width]))


def _bytes(volume: Volume, window: tuple[int, int] | None, mode: str, maps: Tensor | None) -> int:
    """Approximate bytes of the k-space of one slice with all columns."""
    shape = volume.names.get("kspace") or next(volume.names[name] for name in RECONSTRUCTIONS if name in volume.names)
    height, width = window or shape[-2:]
    coils = (volume.coils or 1) if mode == "acquired" else 1 if maps is None else maps.shape[1]
    # acquired k-space has coil maps of the same size
    return 8 * height * width * coils * (2 if mode == "acquired" else 1)


def _simulated(
    volume: Volume,
    index: Tensor,
    *,
    acquisition: Acquisition,
    reader: Callable[..., Tensor],
    window: tuple[int, int] | None,
    maps: Tensor | None,
) -> Iterator[Slices]:
    """Measure the images of a volume, `CHUNK` slices at a time; `index` `(slices,)` are their addresses."""
    for first in range(volume.first, volume.last, CHUNK):
        last = min(first + CHUNK, volume.last)
        x = reader(volume, first, last, window)
        where = index[first - volume.first : last - volume.first]
        coils = None
        if maps is not None:
            if maps.shape[-2:] != x.shape[-2:]:
                raise InputError(
                    f"data.coils: maps of {tuple(maps.shape[-2:])} do not fit images of {tuple(x.shape[-2:])}"
                )
            coils = torch.view_as_real(maps.expand(len(x), *maps.shape[1:]).contiguous())
        columns, masks = acquisition.measure(x, where, coils)
        yield Slices(columns, masks, torch.full((len(x),), acquisition.sigma, dtype=torch.float64), coils, x)


def _magnitudes(volume: Volume, first: int, last: int, window: tuple[int, int] | None, *, image: str) -> Tensor:
    """Magnitude images, `(m, 1, H, W)` in [−2, 2]."""
    name = volume.reconstruction(image)
    u = _centre(torch.from_numpy(volume.read(name, first, last).astype(np.float32)), window, volume)
    top = volume.maximum or float(volume.read(name, 0, volume.names[name][0]).max())
    if float(u.max()) > 1.01 * top:
        raise InputError(
            f"{volume.path}: {name} must not exceed the attribute max = {top:.4g}, got {float(u.max()):.4g}"
        )
    if float(u.min()) < 0:
        raise InputError(f"{volume.path}: {name} must contain magnitudes, got negative values")
    return 4 * u.unsqueeze(1) / top - 2


def _complex_images(
    volume: Volume, first: int, last: int, window: tuple[int, int] | None, *, calibration: int
) -> Tensor:
    """Complex images of the k-space in the file, `(m, 2, H, W)`; several coils are combined with estimated maps."""
    volume.require_kspace()
    kspace = volume.kspace(first, last)
    size = window or volume.reconstructed or (kspace.shape[-2], kspace.shape[-1])
    height, width = kspace.shape[-2:]
    if size[0] > height or size[1] > width:
        raise InputError(f"{volume.path}: a window of {size[0]}×{size[1]} does not fit k-space of {height}×{width}")
    columns = measured_columns(kspace, volume.mask())
    images = centred_ifft2(crop_kspace(kspace, *size))
    if volume.coils:
        maps = estimate_maps(kspace, columns, calibration, str(volume.path))
        u = (centre_crop(maps, *size).conj() * images).sum(1)
    else:
        u = images[:, 0]
    if volume.maximum is None:
        raise InputError(f"{volume.path} has no attribute max, which is needed to scale complex images")
    return (2 / volume.maximum) * torch.view_as_real(u).movedim(-1, 1).contiguous()


def _centre(u: Tensor, window: tuple[int, int] | None, volume: Volume) -> Tensor:
    height, width = u.shape[-2:]
    if window is None:
        return u
    if window[0] > height or window[1] > width:
        raise InputError(f"{volume.path}: a window of {window[0]}×{window[1]} does not fit images of {height}×{width}")
    return centre_crop(u, *window).contiguous()


def expected_size_of_fastmri(options: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape of a sample and number of observations, for estimates of memory and time."""
    height, width = _window(options.get("size")) or (320, 320)
    return (2 if options.get("complex") else 1, height, width), 24_853  # slices 10 to 39 of the knee training volumes
