"""The recipe `digits`, compared with the complete digits: `python -m benchmarks.digits [--seeds 0 1 2]`.

For each seed, runs the recipe and measures the mean squared error on the missing pixels of one posterior draw and of
the mean of 16 draws, for the learned prior and for the Gaussian prior. The figures are those of the recipe's own seed;
all seeds are rows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffem
from diffem.em.evaluation import posterior_draws
from diffem.em.screening import largest_plausible
from diffem.em.split import split
from diffem.metrics import coverage, mse_unmeasured
from diffem.runs.rundir import RunDir

from .record import RESULTS, record


def measure(seed: int, folder: Path, changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run and measure one seed; changes: changes of recipe keys, in the form of `--set`."""
    run = diffem.fit(None, "digits", folder, seed, changes=changes)
    recipe = RunDir(folder).recipe()
    problem = recipe.problem()
    truth, obs = problem.reference, problem.obs
    bound = largest_plausible(diffem.load(folder, 0), recipe.e_step.bound)
    gaussian = diffem.load(folder, 0)
    final = posterior_draws(run.prior, problem.obs, recipe, 16, bound)
    start_draws = posterior_draws(gaussian, problem.obs, recipe, 1, 1e9)
    index, _ = split(len(obs), recipe.watch.held_out)
    laps = []
    for k in range(1, recipe.laps + 1):
        draws = np.concatenate([np.load(f)[0] for f in sorted((folder / f"laps/{k:03d}/draws").glob("*.npy"))])
        laps.append(mse_unmeasured(torch.from_numpy(draws), truth[index], obs[index]))
    laps.append(mse_unmeasured(final[0], truth, obs))  # draws from the last prior
    return {
        "seed": seed,
        "mse_draw": laps[-1],
        "mse_mean16": mse_unmeasured(final.mean(0), truth, obs),
        "mse_draw_gaussian": mse_unmeasured(start_draws[0], truth, obs),
        "mse_mean_gaussian": mse_unmeasured(gaussian.posterior_mean(obs), truth, obs),
        "coverage90": coverage(final, truth),
        "worst_rise": max(b / min(laps[: i + 1]) - 1 for i, b in enumerate(laps[1:])),
        "mse_per_lap": laps,
        # seconds recorded in each lap, so they are correct for resumed runs too
        "seconds": sum(lap["seconds"] for lap in run.laps),
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-digits"))
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of digits.json")
    arguments = parser.parse_args()
    rows = []
    for seed in arguments.seeds:
        rows.append(measure(seed, arguments.out / str(seed)))
        print(rows[-1], flush=True)
        figures = {k: v for k, v in rows[0].items() if isinstance(v, float)}
        print(record("digits", figures, rows, arguments.results), flush=True)


if __name__ == "__main__":
    main()
