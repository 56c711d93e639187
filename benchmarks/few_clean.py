"""A few clean samples among corrupted ones: `python -m benchmarks.few_clean`.

The recipe `digits`, with two laps and half of its training, on 1,747 digits with three quarters or nine tenths of the
pixels missing, alone and together with 50 clean digits (`Observations.concatenate`), whose draws are used ten times as
often. Measured on the missing pixels of the same corrupted digits.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

import diffem
from diffem import Observations
from diffem.datasets.digits import digits
from diffem.em.evaluation import posterior_draws
from diffem.em.screening import largest_plausible
from diffem.metrics import mse_unmeasured
from diffem.observations import Problem
from diffem.runs.rundir import RunDir

from .record import record

CLEAN, WEIGHT = 50, 10
CLEAN_SIGMA = 0.05  # stated for clean digits: about the lowest diffusion noise level of the recipe
SIGMA, DRAWS = 0.1, 4
SHORTER = {"laps": 2, "train.first_steps": 3000, "train.steps": 2000}


def observations(missing: float, seed: int) -> tuple[Observations, Observations, torch.Tensor]:
    """The clean digits, the corrupted ones, and the truth of the corrupted ones."""
    problem = digits(seed, missing, SIGMA)
    assert problem.reference is not None
    clean = Observations(problem.reference[:CLEAN], sigma=CLEAN_SIGMA)
    return clean, problem.obs[CLEAN:], problem.reference[CLEAN:]


def measure(missing: float, seed: int, folder: Path) -> dict[str, Any]:
    clean, corrupted, truth = observations(missing, seed)
    row: dict[str, Any] = {"missing": missing, "seed": seed}
    both = Observations.concatenate([clean, corrupted], weights=[WEIGHT, 1])
    for name, obs in (("without", corrupted), ("with", both)):
        run = diffem.fit(
            obs, "digits", folder / f"{missing}-{name}", seed, changes=SHORTER, progress=False, report=False
        )
        recipe = RunDir(run.path).recipe()
        for lap, kind in ((0, "gaussian"), (None, "learned")):
            prior = run.load(lap)
            drawn = posterior_draws(prior, Problem(corrupted), recipe, DRAWS, largest_plausible(run.load(0), None))
            row[f"mse_draw_{kind}_{name}"] = sum(mse_unmeasured(x, truth, corrupted) for x in drawn) / DRAWS
    row["gain"] = 1 - row["mse_draw_learned_with"] / row["mse_draw_learned_without"]
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--missing", type=float, nargs="+", default=[0.75, 0.9])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-few-clean"))
    arguments = parser.parse_args()
    rows = []
    for missing in arguments.missing:
        rows.append(measure(missing, arguments.seed, arguments.out))
        print(rows[-1], flush=True)
        figures = {f"gain_{row['missing']:g}": row["gain"] for row in rows}
        print(record("few-clean", figures, rows), flush=True)


if __name__ == "__main__":
    main()
