"""Evaluate a run on k-space with held-out slices: `python -m benchmarks.mri RUN [--name mri-fast] [--slices 64]`.

For each acceleration, it measures PSNR and SSIM of the mean of 8 draws, of single draws, of the zero-filled image and
of the Gaussian prior's posterior mean, the residual χ² per measured value, and the coverage of 90 % intervals. It
writes `results/NAME.json`. The pictures are saved in RUN/mri, and with `--pictures` also in another folder.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path
from typing import Any

import torch

from diffem.mri.study import write_study
from diffem.runs.recipe import parse_change
from diffem.runs.rundir import RunDir

from .record import RESULTS, record

# keys of every result of this family, at the acceleration that the prior was learned from
KEYS = (
    "psnr_mean", "psnr_draw", "psnr_zero", "psnr_gaussian", "ssim_mean", "ssim_draw", "ssim_zero", "ssim_gaussian",
    "chi2", "coverage90", "error_to_std", "rejected",
)  # fmt: skip


def figures(run: Path, rows: list[dict[str, Any]], before: float = 0.0) -> dict[str, float]:
    """The figures of a result; before: minutes of the run that this one continues."""
    folder = RunDir(run)
    laps = folder.metrics()
    out: dict[str, float] = {}
    for row in rows:
        if "accel" in row:
            out |= {f"{key}_r{row['accel']:g}": row[key] for key in KEYS if key in row}
    return out | {
        # as recorded in each lap (start, E-step, M-step, evaluation), so it is correct for resumed runs too
        "gpu_minutes": before + sum(lap["seconds"] for lap in laps) / 60,
        "slices": laps[0]["observations"],
        "laps": laps[0].get("laps_before", 0) + len(laps) - 1,
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run", type=Path)
    parser.add_argument("--name", default="mri-fast")
    parser.add_argument("--accel", type=float, nargs="+", default=[4, 6, 8, 16, 32])
    parser.add_argument("--slices", type=int, default=64)
    parser.add_argument("--draws", type=int, default=16)
    parser.add_argument("--figures", type=int, default=8)
    parser.add_argument("--crop", type=int, default=None)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--batch", type=int, default=None)
    parser.add_argument("--lap", type=int, default=None)
    parser.add_argument("--before", type=float, default=0.0, help="minutes of the run that this one continues")
    parser.add_argument("--set", nargs="*", default=[], help="settings of the data: data.path=...")
    parser.add_argument("--pictures", type=Path, default=None, help="copy the figures here, named after the result")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    changes = {key.removeprefix("data."): value for key, value in map(parse_change, arguments.set)}
    out = arguments.run / "mri"
    rows = write_study(
        arguments.run,
        out,
        accels=arguments.accel,
        slices=arguments.slices,
        draws=arguments.draws,
        figures=arguments.figures,
        crop=arguments.crop,
        changes=changes,
        steps=arguments.steps,
        batch=arguments.batch,
        lap=arguments.lap,
        arrays=False,
        device="cuda" if torch.cuda.is_available() else "cpu",
        print_line=lambda line: print(line, flush=True),
    )
    if arguments.pictures is not None:
        arguments.pictures.mkdir(parents=True, exist_ok=True)
        for picture in sorted(out.glob("*.png")):
            shutil.copy(picture, arguments.pictures / f"{arguments.name}-{picture.name}")
    print(record(arguments.name, figures(arguments.run, rows, arguments.before), rows, arguments.results))


if __name__ == "__main__":
    main()
