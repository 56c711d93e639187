"""Reconstruct held-out slices at several accelerations and write figures, arrays and metrics into a folder.

measures.json             one row per acceleration, and one for the crop posterior
slice-000.png …           zero-filled image, draws, mean, standard deviation, error and truth; one row per acceleration
crop.png                  posterior of images of which only a central window was measured
prior.png                 samples of the prior
rR.npz, crop.npz          the arrays; with NIfTI also rR.nii.gz (mean), rR_std.nii.gz, rR_draws.nii.gz
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..em.run import load
from ..files.writing import write_bytes, write_json
from ..report import pictures
from ..report.export import write_npz, write_posterior
from ..runs.rundir import RunDir
from .reconstruction import Reconstruction, centre_window, intensity, problem_like, reconstruct, spread

SAMPLES = 16  # prior samples of prior.png
CROP_NOISE = 0.01  # noise level of the crop posterior
STEPS = 28  # smallest number of sampling steps; E-steps with 14 steps lose 1.3 dB at R = 6 (docs/mri.md)


def write_study(
    path: str | Path,
    out: Path,
    *,
    accels: list[float],
    slices: int = 8,
    draws: int = 16,
    figures: int = 4,
    crop: int | None = None,
    changes: dict[str, Any] | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lap: int | None = None,
    nifti: bool = False,
    arrays: bool = True,
    device: torch.device | str = "cpu",
    print_line: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Reconstruct held-out slices of a run and write the results to a folder.

    Args:
        path: The run folder.
        out: The folder to write.
        accels: Accelerations R.
        slices: Number of slices.
        draws: Posterior draws per slice.
        figures: Number of slices with a figure.
        crop: Side of the central window of the crop posterior, 0 for none. Default: half the image.
        changes: Settings of the data source that differ from the recipe.
        steps: Sampling steps. Default: those of the recipe, at least 28.
        batch: Images per batch. Default: chosen for the device.
        lap: The lap whose prior is used. Default: the last.
        nifti: Also write NIfTI volumes.
        arrays: Write the arrays.
        device: Device of the computation.
        print_line: Called with one line of text for each result.

    Returns:
        The rows of measures.json.

    Raises:
        InputError: If an argument is invalid.
    """
    recipe, prior = RunDir(path).recipe(), load(path, lap, device, "recipe")
    steps = steps or max(recipe.drawing.steps, STEPS)
    side = min(prior.event_shape[-2:])
    _require_settings(accels, draws, crop, side)
    batch = batch or recipe.drawing.batch or prior.batch_for(slices * draws)
    prior.prepare(batch, evaluations=(len(accels) + 1) * math.ceil(slices * draws / batch) * steps)
    parts: list[Reconstruction] = []
    rows: list[dict[str, Any]] = []
    for accel in accels:
        problem = spread(problem_like(recipe, {**(changes or {}), "accel": accel}), slices)
        part = reconstruct(
            f"R = {accel:g}", prior, problem.obs, recipe, draws=draws, truth=problem.reference, steps=steps, batch=batch
        )
        parts.append(part)
        rows.append({"accel": accel, **part.measures()})
        print_line(_line(rows[-1]))
        if arrays:
            write_npz(out / f"r{accel:g}.npz", part.arrays())
        if nifti:
            write_posterior(out / f"r{accel:g}.nii.gz", part.draws, part.arrays()["chi2"])
    for i in range(min(figures, len(parts[0].obs))):
        write_bytes(out / f"slice-{i:03d}.png", slice_by_measurement(parts, i))
    truth = parts[0].truth
    side = side // 2 if crop is None else crop
    if truth is not None and side:
        truth = truth[: max(1, figures)]
        obs = centre_window(truth, side, CROP_NOISE, recipe.seed)
        window = reconstruct(f"{side}×{side}", prior, obs, recipe, draws=draws, truth=truth, steps=steps, batch=batch)
        rows.append(window.measures())
        print_line(_line(rows[-1]))
        _write_crop(out, window, arrays)
    write_bytes(out / "prior.png", _samples(prior, recipe.seed))
    write_json(out / "measures.json", rows)
    return rows


def _require_settings(accels: list[float], draws: int, crop: int | None, side: int) -> None:
    if draws < 2:
        raise InputError(f"--draws must be at least 2, for a standard deviation, got {draws}")
    if crop is not None and crop > side:
        raise InputError(f"--crop must be at most {side}, the shorter side of the images, got {crop}")
    if len(set(accels)) < len(accels):
        raise InputError(f"--accel contains an acceleration twice: {', '.join(f'{a:g}' for a in accels)}")


def _write_crop(out: Path, window: Reconstruction, arrays: bool) -> None:
    each = [_one(window, i) for i in range(len(window.obs))]
    write_bytes(out / "crop.png", slice_by_measurement(each, 0, "window"))
    if arrays:
        write_npz(out / "crop.npz", window.arrays())


def _one(part: Reconstruction, i: int) -> Reconstruction:
    """Reconstruction of slice i alone, as a row of a picture; the observation is black outside the window."""
    zero = torch.full_like(part.zero_filled[i : i + 1], 0.0 if part.draws.shape[-3] == 2 else -2.0)
    seen = part.obs[i].A.adjoint(torch.ones_like(part.obs[i].y)) > 0
    shown = torch.where(seen, part.zero_filled[i : i + 1], zero)
    truth = None if part.truth is None else part.truth[i : i + 1]
    return Reconstruction(f"slice {i + 1}", part.obs[i], part.draws[:, i : i + 1], shown, None, truth)


def _samples(prior: Any, seed: int) -> bytes:
    x = prior.sample(SAMPLES, seed=seed).cpu()
    return pictures.grid(intensity(x)[:, 0].numpy(), columns=4, levels=(0.0, 1.0))


def _line(row: dict[str, Any]) -> str:
    text = f"{row['measurement']:>8}: χ² {row['chi2']:.3f}"
    if "psnr_mean" in row:
        gaussian = f", Gaussian {row['psnr_gaussian']:.2f}" if "psnr_gaussian" in row else ""
        text += (
            f"; PSNR mean of {row['mean_of']} {row['psnr_mean']:.2f}, draw {row['psnr_draw']:.2f}, "
            f"zero-filled {row['psnr_zero']:.2f}{gaussian} dB; SSIM {row['ssim_mean']:.3f}; "
            f"90 % intervals cover {row['coverage90']:.1%}"
        )
    return text


def _image(x: Tensor) -> np.ndarray:
    return intensity(x)[0].numpy()


def slice_by_measurement(parts: list[Reconstruction], i: int, title: str = "zero-filled") -> bytes:
    """Draw slice i: zero-filled image, two draws, mean, standard deviation and, if the truth is known, error and truth.

    Standard deviation and error have the same scale, so that they can be compared.

    Args:
        parts: The reconstructions, one row each.
        i: Index of the slice.
        title: Heading of the first column.
    """
    known = parts[0].truth is not None
    titles = [title, "draw 1", "draw 2", f"mean of {len(parts[0].draws)}", "std"]
    titles += ["|mean − truth|", "truth"] if known else []
    height, width = parts[0].draws.shape[-2:]
    figure, axes = pictures.new_figure(
        1.6 * len(titles) + 0.3, 1.6 * height / width * len(parts) + 0.3, nrows=len(parts), ncols=len(titles)
    )
    spreads = [intensity(p.draws).std(0)[i, 0].numpy() for p in parts]
    top = max(1e-6, float(np.percentile(np.stack(spreads), 99.5)))
    for r, (row, part, std) in enumerate(zip(axes, parts, spreads, strict=True)):
        mean = _image(part.mean[i])
        panels = [_image(x) for x in (part.zero_filled[i], part.draws[0, i], part.draws[1, i])] + [mean, std]
        if part.truth is not None:
            truth = _image(part.truth[i])
            panels += [np.abs(mean - truth), truth]
        for axis, panel, name in zip(row, panels, titles, strict=True):
            warm = name in ("std", "|mean − truth|")
            colours = {"cmap": "magma", "vmax": top} if warm else {"cmap": "gray", "vmax": 1}
            pictures.show_image(axis, panel, vmin=0, interpolation="nearest", **colours)
            if r == 0:
                axis.set_title(name, fontsize=9)
        row[0].set_ylabel(part.name, fontsize=9)
    return pictures.to_png(figure)
