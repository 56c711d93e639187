"""The recipes for the user's own data, without changes: `python -m benchmarks.own_data --data FOLDER [--only table]`.

- pixels: 2,000 FashionMNIST images at 14×14 in [0, 1], 60 % of the pixels missing, each with its own noise level (0.05
  to 0.2); recipe `small-images`.
- pixels-fine: the same images in [-2, 2] with noise levels of the same size, a quarter of it relative to the images.
- blurs: 3,000 MNIST images at 14×14 in [-2, 2], each with its own blur and noise level (`benchmarks.blurs`); recipe
  `small-images`.
- table: scikit-learn's breast-cancer table, standardised, 30 % of the values missing, noise level 0.03; recipe `table`.

Each row contains, for one lap, the error of the mean of 8 draws (root mean square and mean absolute) and of one draw
(mean square) on the missing values, or on whole images if they are blurred, and the coverage of 90 % intervals. The
keys that end in `_all` are errors of the same means on all values, measured ones included. The last lap has the same
with 32 draws. Lap 0 is the Gaussian start. Draws take the number of steps of the recipe's E-step if it is
`conditional`, and 64 steps with mmps. Seconds are those of the whole call of `fit`. FOLDER contains `fashion-mnist/`
and `mnist/`, each with `train-images-idx3-ubyte` or the same file with `.gz`. `--set` changes keys of the recipe.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import diffem
from diffem import Observations
from diffem.em.expectation import posterior_from_recipe
from diffem.em.split import split
from diffem.metrics import coverage
from diffem.runs.recipe import parse_change
from diffem.runs.rundir import RunDir

from . import blurs
from .record import RESULTS, earlier, record

DRAWS, MORE_DRAWS, EVALUATED = 8, 32, 256
KEYS = ("rmse_mean", "mae_mean", "mse_mean", "mse_draw", "coverage90", "run_seconds")  # of the figures
STEPS = 64  # steps of a draw with mmps, the default of `posterior.sample`
# x, observations, and a mask of the values whose errors count, all (n, *event)
Problem = tuple[Tensor, Observations, Tensor]


def pixels(folder: Path) -> Problem:
    return masked((blurs.images(folder / "fashion-mnist", 2000) + 2) / 4)


def pixels_fine(folder: Path) -> Problem:
    return masked(blurs.images(folder / "fashion-mnist", 2000))


def masked(x: Tensor) -> Problem:
    """Images `(n, height, width)` without 60 % of their pixels, each with its own noise level."""
    generator = torch.Generator().manual_seed(0)
    measured = torch.rand(x.shape, generator=generator) > 0.6
    sigma = 0.05 + 0.15 * torch.rand(len(x), generator=generator)
    y = x + sigma[:, None, None] * torch.randn(x.shape, generator=generator)
    return x, Observations(torch.where(measured, y, torch.nan), sigma=sigma), ~measured


def blurred(folder: Path) -> Problem:
    x, obs = blurs.problem(folder / "mnist")
    return x, obs, torch.ones_like(x, dtype=torch.bool)


def table(folder: Path) -> Problem:
    from sklearn.datasets import load_breast_cancer

    generator = torch.Generator().manual_seed(0)
    values = load_breast_cancer().data
    x = torch.from_numpy((values - values.mean(0)) / values.std(0)).float()
    measured = torch.rand(x.shape, generator=generator) > 0.3
    y = x + 0.03 * torch.randn(x.shape, generator=generator)
    return x, Observations(torch.where(measured, y, torch.nan), sigma=0.03), ~measured


CASES: dict[str, tuple[Callable[[Path], Problem], str]] = {
    "pixels": (pixels, "small-images"),
    "pixels-fine": (pixels_fine, "small-images"),
    "blurs": (blurred, "small-images"),
    "table": (table, "table"),
}


def drawn(prior: Any, e_step: Any, obs: Observations, draws: int) -> Tensor:
    steps = e_step.steps if e_step.method == "conditional" else STEPS
    return posterior_from_recipe(prior, obs, e_step).sample(draws, steps=steps, seed=1, progress=False)


def errors(draws: Tensor, x: Tensor, counted: Tensor, suffix: str = "") -> dict[str, float]:
    """Errors of draws `(k, n, *event)` of x `(n, *event)` at the entries `counted`."""
    every = draws.mean(0) - x
    off, one = every[counted], (draws[0] - x)[counted]
    found = {
        "rmse_mean": off.square().mean().sqrt(),
        "mae_mean": off.abs().mean(),
        "mse_mean": off.square().mean(),
        "rmse_mean_all": every.square().mean().sqrt(),
        "mse_mean_all": every.square().mean(),
        "mse_draw": one.square().mean(),
        "coverage90": coverage(draws[:, counted].unsqueeze(-1), x[counted].unsqueeze(-1)),
    }
    return {f"{name}{suffix}": float(value) for name, value in found.items()}


def measure(case: str, folder: Path, changes: dict[str, Any]) -> list[dict[str, Any]]:
    """Measure one run; returns one row per lap."""
    make, recipe = CASES[case]
    x, obs, counted = make(folder)
    rows = []
    with tempfile.TemporaryDirectory() as out:
        began = time.monotonic()
        run = diffem.fit(obs, recipe, Path(out) / "run", changes=changes)
        seconds = time.monotonic() - began
        used = RunDir(run.path).recipe()
        some = torch.as_tensor(np.asarray(split(len(obs), used.watch.held_out)[0]))[:EVALUATED]
        for lap, metrics in enumerate(run.laps):
            e_step = used.at(max(1, lap)).e_step
            row: dict[str, Any] = {"case": case, "recipe": recipe, "lap": lap}
            last = lap == len(run.laps) - 1
            draws = drawn(diffem.load(run.path, lap), e_step, obs[some], MORE_DRAWS if last else DRAWS)
            row |= errors(draws[:DRAWS], x[some], counted[some])
            if last:
                row |= errors(draws, x[some], counted[some], f"_{MORE_DRAWS}")
            keys = ("start_seconds", "e_seconds", "m_seconds", "watch_seconds", "predictive_log_likelihood", "warnings")
            rows.append(row | {key: metrics[key] for key in keys if key in metrics})
            print(rows[-1], flush=True)
        rows[-1] |= {"run_seconds": seconds, "best": run.verdict.best}
    print(f"{case}: {seconds:.0f} s", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--set", nargs="+", default=[], metavar="KEY=VALUE", dest="changes")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of own-data.json")
    arguments = parser.parse_args()
    changes = dict(map(parse_change, arguments.changes))
    rows = [row for row in earlier("own-data", arguments.results) if row["case"] not in arguments.only]
    for case in arguments.only:
        rows += measure(case, arguments.data, changes)
        last = {row["case"]: row for row in rows}
        figures = {f"{key}_{name}": row[key] for name, row in last.items() for key in row if key.startswith(KEYS)}
        figures |= {f"start_seconds_{row['case']}": row["start_seconds"] for row in rows if "start_seconds" in row}
        print(record("own-data", figures, rows, arguments.results), flush=True)


if __name__ == "__main__":
    main()
