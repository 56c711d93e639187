"""Export posterior draws: `.npz` arrays, and NIfTI volumes for viewers of medical images."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from torch import Tensor

from ..core.errors import InputError
from ..files.writing import write_bytes


def write_npz(path: Path, arrays: dict[str, Tensor]) -> None:
    """Write tensors to an `.npz` file."""
    buffer = io.BytesIO()
    np.savez(buffer, **{name: x.numpy() for name, x in arrays.items()})  # type: ignore[arg-type]
    write_bytes(path, buffer.getvalue())


def require_volume(path: Path, event: tuple[int, ...]) -> None:
    """Check that samples of shape `event` can be written as NIfTI.

    Raises:
        InputError: If samples are not image slices, or nibabel is not installed.
    """
    if len(event) != 3 or event[0] not in (1, 2):
        raise InputError(
            f"{path.name}: a volume needs image slices of shape (1 or 2, H, W), got samples of shape {event}"
        )
    if find_spec("nibabel") is None:
        raise InputError(f"writing {path.name} needs nibabel: pip install 'diffem[mri]', or export .npz")


def to_volume(x: Tensor, intensities: bool = True) -> np.ndarray:
    """Convert slices to a volume in the axis order of NIfTI: columns, rows, slices, draws.

    Args:
        x: `(n, 1 or 2, H, W)`, slices, or `(k, n, 1 or 2, H, W)`, k draws of n slices.
        intensities: Whether x has the scale of the MRI data sources and is converted to intensities.

    Returns:
        `(W, H, n)` or `(W, H, n, k)`. Magnitudes in [0, 1], or complex numbers of magnitude up to 1; in the units of x
        if they are not converted.
    """
    if x.ndim not in (4, 5) or x.shape[-3] not in (1, 2):
        raise InputError(f"a volume needs image slices (n, 1 or 2, H, W), got samples of shape {tuple(x.shape)}")
    array = x.numpy()
    complex = x.shape[-3] == 2
    values = array[..., 0, :, :] + 1j * array[..., 1, :, :] if complex else array[..., 0, :, :]
    if intensities:
        values = values / 2 if complex else (values + 2) / 4
    volume = np.moveaxis(values, (-1, -2), (0, 1)) if values.ndim == 3 else values.transpose(3, 2, 1, 0)
    return np.ascontiguousarray(volume, dtype=np.complex64 if np.iscomplexobj(volume) else np.float32)


def write_nifti(path: Path, volume: np.ndarray, voxel: tuple[float, float, float] = (1.0, 1.0, 1.0)) -> None:
    """Write a volume as `.nii` or `.nii.gz`.

    The file has no scanner geometry: rows run downwards, and the origin is the centre of the volume.

    Args:
        volume: `(W, H, n)` or `(W, H, n, k)`.
        voxel: Size of a voxel in millimetres along columns, rows and slices.
    """
    try:
        from nibabel.nifti1 import Nifti1Image
    except ImportError:
        raise InputError(f"writing {path.name} needs nibabel: pip install 'diffem[mri]', or export .npz") from None
    affine = np.diag([voxel[0], -voxel[1], voxel[2], 1.0])
    affine[:3, 3] = -affine[:3, :3] @ ((np.array(volume.shape[:3]) - 1) / 2)
    image = Nifti1Image(volume, affine)
    image.header.set_xyzt_units("mm")
    data = image.to_bytes()
    if path.name.endswith(".gz"):
        import gzip

        data = gzip.compress(data, 6, mtime=0)
    write_bytes(path, data)


def write_posterior(path: Path, draws: Tensor, chi2: Tensor, intensities: bool = True) -> None:
    """Write posterior draws with their mean and standard deviation.

    An `.npz` file contains all arrays. For NIfTI, `path` is the mean, and files with `_std` and `_draws` in their names
    are written next to it. The standard deviation is left out if there is only one draw.

    Args:
        path: A file that ends in `.npz`, `.nii` or `.nii.gz`.
        draws: `(k, n, *event)`.
        chi2: `(k, n)`. Squared residual of each draw per measured value.
        intensities: Whether the values of a volume are converted to intensities; see `to_volume`.
    """
    if path.suffix == ".npz":
        std = {"std": draws.std(0)} if len(draws) > 1 else {}
        write_npz(path, {"draws": draws, "mean": draws.mean(0), **std, "chi2": chi2})
        return
    stem = path.name.removesuffix(".gz").removesuffix(".nii")
    suffix = path.name[len(stem) :]
    if suffix not in (".nii", ".nii.gz"):
        raise InputError(f"--out must end in .npz, .nii, .nii.gz or .png, got {path}")
    volumes = to_volume(draws, intensities)
    write_nifti(path, volumes.mean(-1))
    if len(draws) > 1:
        deviations = np.abs(volumes - volumes.mean(-1, keepdims=True))
        spread = np.sqrt((deviations**2).sum(-1) / (len(draws) - 1))
        write_nifti(path.with_name(f"{stem}_std{suffix}"), spread.astype(np.float32))
    write_nifti(path.with_name(f"{stem}_draws{suffix}"), volumes)
