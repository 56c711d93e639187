"""One call from a run to a folder a radiologist can look through: figures, arrays, measures.

measures.json             a row per acceleration, and one for the crop posterior
slice-000.png …           zero-filled, draws, mean, standard deviation, error and truth, a row per acceleration
crop.png                  what the prior says around a central window that was measured
prior.png                 samples of the prior
rR.npz, crop.npz          the arrays; with NIfTI also rR.nii.gz (mean), rR_std.nii.gz, rR_draws.nii.gz
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InputError
from ..em.run import load
from ..files.writing import write_bytes, write_json
from ..report import pictures
from ..report.export import write_npz, write_posterior
from ..runs.rundir import RunDir
from .reconstruction import Reconstruction, centre_window, intensity, problem_like, reconstruct, spread
from .slices import slice_by_measurement

SAMPLES = 16
# Laps may draw with fewer; slices that are looked at gain 1.3 dB over 14 steps at R = 6 (docs/mri.md).
STEPS = 28


def write_study(
    path: str | Path,
    out: Path,
    *,
    accels: list[float],
    slices: int = 8,
    draws: int = 16,
    figures: int = 4,
    crop: int | None = None,
    crop_sigma: float = 0.01,
    changes: dict[str, Any] | None = None,
    steps: int | None = None,
    batch: int | None = None,
    lap: int | None = None,
    nifti: bool = False,
    arrays: bool = True,
    device: torch.device | str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> list[dict[str, Any]]:
    """Reconstruct held-out slices of the run at `path` at every acceleration and write everything to `out`; returns the measures.

    steps: those of the recipe when absent, but at least 28. crop: side of the central window, half the image when absent, 0 for none.
    changes: other settings of the run's data source.
    """
    recipe, prior = RunDir(path).recipe(), load(path, lap, device, "recipe")
    steps = steps or max(recipe.drawing.steps, STEPS)
    if draws < 2:
        raise InputError(f"--draws must be at least 2, for a standard deviation, got {draws}")
    side = min(prior.event_shape[-2:])
    if crop is not None and crop > side:
        raise InputError(f"--crop must be at most {side}, the images' shorter side, got {crop}")
    if len(set(accels)) < len(accels):
        raise InputError(f"--accel names an acceleration twice: {', '.join(f'{a:g}' for a in accels)}")
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
        say(_line(rows[-1]))
        if arrays:
            write_npz(out / f"r{accel:g}.npz", part.arrays())
        if nifti:
            write_posterior(out / f"r{accel:g}.nii.gz", part.draws, part.arrays()["chi2"])
    for i in range(min(figures, len(parts[0].obs))):
        write_bytes(out / f"slice-{i:03d}.png", slice_by_measurement(parts, i))
    truth = parts[0].truth
    side = min(parts[0].draws.shape[-2:]) // 2 if crop is None else crop
    if truth is not None and side:
        obs = centre_window(truth[: max(1, figures)], side, crop_sigma, recipe.seed)
        window = reconstruct(
            f"{side}×{side}", prior, obs, recipe, draws=draws, truth=truth[: len(obs)], steps=steps, batch=batch
        )
        rows.append(window.measures())
        say(_line(rows[-1]))
        each = [_one(window, i) for i in range(len(obs))]
        write_bytes(out / "crop.png", slice_by_measurement(each, 0, "window"))
        if arrays:
            write_npz(out / "crop.npz", window.arrays())
    write_bytes(out / "prior.png", _samples(prior, recipe.seed))
    write_json(out / "measures.json", rows)
    return rows


def _one(part: Reconstruction, i: int) -> Reconstruction:
    """Slice i alone, so that slices can be rows of a picture; outside the window the observation is shown black."""
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
            f"; PSNR mean of {row['mean_of']} {row['psnr_mean']:.2f}, draw {row['psnr_draw']:.2f}, zero-filled {row['psnr_zero']:.2f}"
            f"{gaussian} dB; SSIM {row['ssim_mean']:.3f}; 90 % intervals cover {row['coverage90']:.1%}"
        )
    return text
