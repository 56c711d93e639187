"""Fewer laps with the loss on measured values: `python -m benchmarks.forgetting [--shares 0 0.5 0.8 1] [--out FOLDER]`.

Runs the recipes `digits` and `manifold-quick` (the latter without particles) for several values of `train.measured`,
the weight of the loss on measured values; 0 is EM. For each lap, the benchmark measures what the observations do not
determine: the error of the draws on the missing pixels, and the fraction of draws off the curve.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from diffem.em.run import run_recipe
from diffem.em.split import split
from diffem.metrics import mse_unmeasured
from diffem.observations.problem import Problem
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import Recipe, load_recipe
from diffem.runs.rundir import RunDir

from .curve import distance_from_curve
from .record import record

LAPS = {"digits": 6, "manifold-quick": 10}
CHANGES: dict[str, dict[str, Any]] = {
    "digits": {},
    "manifold-quick": {
        "e_step.sampler": "ddpm2",
        "e_step.sampler_options": {},
        "e_step.solver": "cg",
        "e_step.iterations": 2,
    },
}
OFF = 0.1  # a draw further from the curve than this is off the curve


def off_curve(x: torch.Tensor, seed: int) -> float:
    """Fraction of points `(n, 5)` further than OFF from the curve."""
    return float((distance_from_curve(x, seed) > OFF).double().mean())


def measure(name: str, share: float, out: Path) -> list[dict[str, Any]]:
    recipe = load_recipe(name, CHANGES[name] | {"train.measured": share, "laps": LAPS[name]})
    problem = recipe.problem()
    rows: list[dict[str, Any]] = []

    def on_event(event: str, data: dict[str, Any]) -> None:
        if event == "expectation":
            error = _error(recipe, problem, out, data["lap"])
            rows.append(
                {"recipe": name, "measured": share, "lap": data["lap"], "error": error, "guards": data["guards"]}
            )
            print(rows[-1], flush=True)

    run_recipe(recipe, problem.obs, out, on_event=on_event, progress=False)
    return rows


def _error(recipe: Recipe, problem: Problem, out: Path, lap: int) -> float:
    index, _ = split(len(problem.obs), recipe.watch.held_out)
    store = DrawStore.of_lap(RunDir(out), lap, len(index), recipe.e_step.shard)
    draws = store.all()[: len(index)]
    assert problem.reference is not None
    if recipe.data.source == "manifold":
        return off_curve(draws, recipe.seed)
    return mse_unmeasured(draws, problem.reference[index], problem.obs[index])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.5, 0.8, 1.0])
    parser.add_argument("--out", type=Path, default=Path("runs/forgetting"))
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name in LAPS:
        for share in arguments.shares:
            rows += measure(name, share, arguments.out / f"{name}-{share:g}")
    last = {(row["recipe"], row["measured"]): row["error"] for row in rows}  # laps are in order
    figures = {f"{name}_{share:g}": error for (name, share), error in last.items()}
    print(record("forgetting", figures, rows))


if __name__ == "__main__":
    main()
