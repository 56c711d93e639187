"""The paper's third experiment and its data as published: fastMRI volumes, seen through accelerated k-space.

Two modes. `simulated`: the reconstructed images are the truth, their k-space is measured with random columns and added noise (the paper's;
magnitude images from a reconstruction, complex ones from the file's own k-space). `acquired`: the file's k-space is the measurement, see
`acquired.py`. Magnitude images are one channel, 4u/max − 2 in [−2, 2]; complex ones two, 2u/max; max is the volume's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..observations import Problem
from ..operators.centred import centred_ifft2
from .acquired import acquired_slices
from .coils import crop_kspace, estimate_maps, maps_identity, measured_columns, read_maps
from .fastmri_files import RECONSTRUCTIONS, Volume, pair, volumes
from .kspace import Protocol
from .kspace_cache import Slices, shelve

CHUNK = 8  # slices handled at a time


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

    path: a folder of `*.h5` files, or one. mode: "simulated" or "acquired".
    accel: acceleration R of the column masks; in acquired mode 1 keeps every column that was measured.
    sigma: noise on real and imaginary parts, on the scale of x; 0.01 when simulated, estimated from the data when acquired.
    complex: two channels (real, imaginary) instead of one of magnitude. slices, files: ranges [first, last) of slices in a volume and of
        volumes in the folder, sorted by name. size: height and width of the image window, the reconstruction's when absent.
    image: which reconstruction, "reconstruction_rss", "reconstruction_esc" or "auto".
    coils: acquired: "estimate", a file or folder of maps, or "dataset NAME" inside the files; simulated: a file of maps `(c, h, w)` to
        measure with. calibration: width of the central k-space that maps are estimated from.
    cache: folder for the measured columns; when absent, memory up to 1.5 GiB of k-space and the user's cache folder beyond.
    """
    if mode not in ("simulated", "acquired"):
        raise InputError(f"data.mode must be 'simulated' or 'acquired', got {mode!r}")
    if image not in ("auto", *RECONSTRUCTIONS):
        raise InputError(f"data.image must be 'auto', {' or '.join(map(repr, RECONSTRUCTIONS))}, got {image!r}")
    found = volumes(path, pair(slices, "slices"), pair(files, "files"))
    window = _window(size)
    made_from = {
        "source": "fastmri", "seed": seed, "mode": mode, "accel": accel, "sigma": sigma, "complex": complex, "size": window,
        "image": image, "coils": None if coils is None else [coils, maps_identity(coils)], "calibration": calibration,
        "files": [volume.identity() for volume in found],
    }  # fmt: skip
    each: Callable[[Volume, Tensor], Iterator[Slices]]
    maps = None
    if mode == "simulated":
        protocol = Protocol(accel, 0.01 if sigma is None else sigma, seed)
        maps = None if coils is None else read_maps(coils, "", 0, 1)
        each = partial(
            _simulated,
            protocol=protocol,
            complex=complex,
            window=window,
            image=image,
            maps=maps,
            calibration=calibration,
        )
    else:
        Protocol(accel, 1.0 if sigma is None else sigma, seed)  # checks the numbers
        for volume in found:
            volume.require_kspace()
        each = partial(
            acquired_slices, accel=accel, sigma=sigma, seed=seed, complex=complex, window=window, coils=coils,
            calibration=calibration, chunk=CHUNK,
        )  # fmt: skip

    def parts() -> Iterator[Slices]:
        start, expected = 0, None
        for volume in found:
            for part in each(volume, torch.arange(start, start + len(volume))):
                shape = (tuple(part.columns.shape[1:]), part.masks.shape[1])
                expected = expected or (shape, volume.path)
                if shape != expected[0]:
                    raise InputError(
                        f"{volume.path} has k-space {_form(*shape)} and {expected[1]} {_form(*expected[0])}; "
                        "one run needs one size: set data.size, or keep such files apart"
                    )
                yield part
            start += len(volume)

    size_of_all = sum(map(len, found)) * _bytes(found[0], window, mode, maps)
    shelf = shelve(parts(), complex, size_of_all, cache, made_from)
    about = _about(shelf.sigma, found, mode, accel, sigma)
    return Problem(shelf.observations(), shelf.reference, about=about)


def _about(levels: np.ndarray, found: list[Volume], mode: str, accel: float, sigma: float | None) -> str:
    text = f"{sum(map(len, found))} slices of {len(found)} volumes, {mode} k-space at R = {accel:g}; noise level "
    if mode == "simulated" or sigma is not None:
        return text + f"{float(levels[0]):g} on real and imaginary parts, as given"
    low, middle, high = np.percentile(levels, [0, 50, 100])
    return text + (
        f"{middle:.4g} on real and imaginary parts (median; {low:.4g} to {high:.4g} over volumes), estimated from the corners of k-space"
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
    """Bytes of one slice's k-space with every column, about."""
    shape = volume.names.get("kspace") or next(volume.names[name] for name in RECONSTRUCTIONS if name in volume.names)
    height, width = window or shape[-2:]
    coils = (volume.coils or 1) if mode == "acquired" else 1 if maps is None else maps.shape[1]
    # acquired k-space comes with maps of the same size
    return 8 * height * width * coils * (2 if mode == "acquired" else 1)


def _simulated(
    volume: Volume,
    index: Tensor,
    *,
    protocol: Protocol,
    complex: bool,
    window: tuple[int, int] | None,
    image: str,
    maps: Tensor | None,
    calibration: int,
) -> Iterator[Slices]:
    read = _complex_images if complex else _magnitudes
    for first in range(volume.first, volume.last, CHUNK):
        last = min(first + CHUNK, volume.last)
        x = read(volume, first, last, window, image, calibration)
        where = index[first - volume.first : last - volume.first]
        coils = None
        if maps is not None:
            if maps.shape[-2:] != x.shape[-2:]:
                raise InputError(
                    f"data.coils: maps of {tuple(maps.shape[-2:])} do not fit images of {tuple(x.shape[-2:])}"
                )
            coils = torch.view_as_real(maps.expand(len(x), *maps.shape[1:]).contiguous())
        columns, masks = protocol.measure(x, where, coils)
        yield Slices(columns, masks, torch.full((len(x),), protocol.sigma, dtype=torch.float64), coils, x)


def _magnitudes(
    volume: Volume, first: int, last: int, window: tuple[int, int] | None, image: str, calibration: int
) -> Tensor:
    """`(m, 1, H, W)` in [−2, 2]."""
    name = volume.reconstruction(image)
    u = _centre(torch.from_numpy(volume.read(name, first, last).astype(np.float32)), window, volume)
    top = volume.maximum or float(volume.read(name, 0, volume.names[name][0]).max())
    if float(u.max()) > 1.01 * top:
        raise InputError(
            f"{volume.path}: {name} reaches {float(u.max()):.4g}, beyond the file's attribute max = {top:.4g}"
        )
    if float(u.min()) < 0:
        raise InputError(f"{volume.path}: {name} holds negative values; magnitudes are expected")
    return 4 * u.unsqueeze(1) / top - 2


def _complex_images(
    volume: Volume, first: int, last: int, window: tuple[int, int] | None, image: str, calibration: int
) -> Tensor:
    """`(m, 2, H, W)`: the image of the file's k-space; of several coils, combined with maps estimated from their centre."""
    volume.require_kspace()
    kspace = torch.from_numpy(volume.read("kspace", first, last).astype(np.complex64))
    kspace = kspace if volume.coils else kspace.unsqueeze(1)
    size = window or _reconstructed(volume) or (kspace.shape[-2], kspace.shape[-1])
    if size[0] > kspace.shape[-2] or size[1] > kspace.shape[-1]:
        raise InputError(f"{volume.path}: a window of {size} does not fit k-space of {tuple(kspace.shape[-2:])}")
    columns = measured_columns(kspace, volume.mask())
    images = centred_ifft2(crop_kspace(kspace, *size))
    if volume.coils:
        maps = estimate_maps(kspace, columns, calibration, str(volume.path))
        top, left = ((full - part) // 2 for full, part in zip(kspace.shape[-2:], size, strict=True))
        u = (maps[..., top : top + size[0], left : left + size[1]].conj() * images).sum(1)
    else:
        u = images[:, 0]
    if volume.maximum is None:
        raise InputError(f"{volume.path} has no attribute max to scale complex images by")
    return (2 / volume.maximum) * torch.view_as_real(u).movedim(-1, 1).contiguous()


def _reconstructed(volume: Volume) -> tuple[int, int] | None:
    shapes = [volume.names[name] for name in RECONSTRUCTIONS if name in volume.names]
    return (shapes[0][-2], shapes[0][-1]) if shapes else None


def _centre(u: Tensor, window: tuple[int, int] | None, volume: Volume) -> Tensor:
    height, width = u.shape[-2:]
    if window is None:
        return u
    if window[0] > height or window[1] > width:
        raise InputError(f"{volume.path}: a window of {window[0]}×{window[1]} does not fit images of {height}×{width}")
    top, left = (height - window[0]) // 2, (width - window[1]) // 2
    return u[..., top : top + window[0], left : left + window[1]].contiguous()
