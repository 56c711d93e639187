"""A few clean images among corrupted ones: `python -m benchmarks.few_clean --data FOLDER [--missing 0.75 0.9]`.

5,000 MNIST images at 14×14 in [-2, 2], with three quarters or nine tenths of the pixels missing and noise of 0.1, alone
and together with 50 other images that are clean (`Observations.concatenate`), whose draws are used ten times as often.
The recipe is `digits` with a wider network and two laps. Measured on the missing pixels of the first corrupted images:
the mean squared error of a draw and of the mean of the draws, for the Gaussian start and for the learned prior. FOLDER
contains `train-images-idx3-ubyte`. With `--case` only one of the two runs is made, and `--merge FOLDER` joins the
results of such parts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffem
from diffem import Observations, operators
from diffem.em.evaluation import posterior_draws
from diffem.em.screening import largest_plausible
from diffem.metrics import mse_unmeasured
from diffem.runs.rundir import RunDir

from .blurs import images
from .record import RESULTS, merge, record

CORRUPTED, CLEAN, WEIGHT = 5000, 50, 10
CLEAN_SIGMA = 0.05  # stated for clean images: about the lowest diffusion noise level of the recipe
SIGMA, DRAWS, EVALUATED = 0.1, 8, 1000
CASES = ("without", "with")
RECIPE = {
    "laps": 2,
    "network.hidden": [768, 768, 768],
    "e_step.draws": 1,
    "train.first_steps": 6000,
    "train.steps": 4000,
    "e_step.bound": None,
}


def observations(data: Path, missing: float, seed: int, count: int) -> tuple[Observations, Observations, Tensor]:
    """The clean images, the corrupted ones, and the truth of the corrupted ones."""
    generator = torch.Generator().manual_seed(seed)
    x = images(data, CLEAN + count)
    mask = torch.rand(count, *x.shape[1:], generator=generator) >= missing
    y = x[CLEAN:] + SIGMA * torch.randn(x[CLEAN:].shape, generator=generator)
    corrupted = Observations(torch.where(mask, y, 0), operators.Mask(mask), sigma=SIGMA)
    return Observations(x[:CLEAN], sigma=CLEAN_SIGMA), corrupted, x[CLEAN:]


def measure(arguments: argparse.Namespace, missing: float, case: str) -> dict[str, Any]:
    """One run: the errors of its Gaussian start and of its last prior."""
    clean, corrupted, truth = observations(arguments.data, missing, arguments.seed, arguments.count)
    obs = corrupted if case == "without" else Observations.concatenate([clean, corrupted], weights=[WEIGHT, 1])
    changes = {**RECIPE, **({"train.first_steps": 100, "train.steps": 100} if arguments.toy else {})}
    folder = arguments.out / f"{missing}-{case}-{arguments.seed}"
    run = diffem.fit(obs, "digits", folder, arguments.seed, changes=changes, progress=False, report=False)
    recipe, bound = RunDir(run.path).recipe(), largest_plausible(run.load(0), None)
    row: dict[str, Any] = {"missing": missing, "case": case, "seed": arguments.seed}
    some, truth = corrupted[:EVALUATED], truth[:EVALUATED]
    for lap, kind in ((0, "gaussian"), (None, "learned")):
        drawn = posterior_draws(run.load(lap), some, recipe, DRAWS, bound)
        row[f"mse_draw_{kind}"] = sum(mse_unmeasured(x, truth, some) for x in drawn) / DRAWS
        row[f"mse_mean_{kind}"] = mse_unmeasured(drawn.mean(0), truth, some)
    return row | {"seconds": sum(lap["seconds"] for lap in run.laps), "corrupted": len(corrupted), "clean": CLEAN}


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The relative decrease of the error of a draw by the clean images, for each share of missing pixels."""
    error = {(row["missing"], row["case"]): row["mse_draw_learned"] for row in rows}
    both = sorted({missing for missing, _ in error if {(missing, case) for case in CASES} <= set(error)})
    return {f"gain_{missing:g}": 1 - error[missing, "with"] / error[missing, "without"] for missing in both}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, help="the folder of MNIST")
    parser.add_argument("--missing", type=float, nargs="+", default=[0.75, 0.9])
    parser.add_argument("--case", choices=CASES, nargs="+", default=list(CASES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=CORRUPTED)
    parser.add_argument("--toy", action="store_true", help="100 training steps")
    parser.add_argument("--name", default="few-clean")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-few-clean"))
    parser.add_argument("--merge", type=Path, help="join the results of parts in this folder, and measure nothing")
    arguments = parser.parse_args()
    if arguments.merge is not None:
        print(merge("few-clean", sorted(arguments.merge.glob("few-clean-*.json")), figures))
        return
    rows: list[dict[str, Any]] = []
    for missing in arguments.missing:
        for case in arguments.case:
            rows.append(measure(arguments, missing, case))
            print(rows[-1], flush=True)
            print(record(arguments.name, figures(rows), rows, arguments.results), flush=True)


if __name__ == "__main__":
    main()
