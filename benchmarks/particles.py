"""What EM makes of draws that are weighed: `python -m benchmarks.particles [--laps 12] [--workers 2]`.

The recipe `manifold-quick`, its E-step with three samplers that take about the same number of evaluations per draw: `ddpm2` and the
predictor–corrector follow `mmps` as it is; `tds` moves eight particles per draw and pays back by weights what `mmps` gets wrong. Per lap,
against the true points behind the observations: how far the draws are from the curve, how they lie along it, and how many lie elsewhere
on it. Draws from the exact posterior on the true curve stand beside them.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torch import Tensor

from diffem.data import DrawStore
from diffem.em.fit import carry_out
from diffem.em.watch import split
from diffem.runs.recipe import load_recipe
from diffem.runs.rundir import RunDir

from .manifold import exact_draws, on_curve, without_floor
from .record import record
from .workers import shared_out

ELSEWHERE = 0.5  # a draw further than this from its true point along the curve took another branch of it

CASES: dict[str, dict[str, Any]] = {
    "ddpm2": {"e_step.sampler": "ddpm2", "e_step.sampler_options": {}, "e_step.solver": "cg", "e_step.steps": 512},
    "pc": {
        "e_step.sampler": "pc",
        "e_step.sampler_options": {"corrections": 1, "tau": 0.1, "down_to": 0.1},
        "e_step.solver": "cg",
        "e_step.steps": 344,
    },
    "tds": {
        "e_step.sampler": "tds",
        "e_step.sampler_options": {"particles": 8},
        "e_step.solver": "direct",
        "e_step.steps": 64,
    },
}


def compared(draws: Tensor, truths: Tensor, seed: int) -> dict[str, float]:
    """Draws `(n, d)` and the true points behind their observations."""
    places = (on_curve(x, seed)[1] for x in (draws, truths))
    apart = (next(places) - next(places)).abs()
    return without_floor(draws, truths, seed) | {"elsewhere": float((apart > ELSEWHERE).double().mean())}


def measure(sampler: str, laps: int, out: Path) -> list[dict[str, Any]]:
    recipe = load_recipe("manifold-quick", CASES[sampler] | {"laps": laps})
    problem = recipe.problem()
    index, _ = split(len(problem.obs), recipe.watch.held_out)
    assert problem.reference is not None
    truths = problem.reference[index]
    carry_out(recipe, problem.obs, out, progress=False)
    rows: list[dict[str, Any]] = []
    for metrics in RunDir(out).metrics()[1:]:
        draws = DrawStore(RunDir(out).lap(metrics["lap"]) / "draws", len(index), recipe.e_step.shard).all()
        kept = {key: metrics[key] for key in ("lap", "rejected", "guards", "chi2", "e_seconds")}
        rows.append({"sampler": sampler, **kept, **compared(draws, truths, recipe.seed)})
        print(rows[-1], flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--laps", type=int, default=12)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--samplers", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("runs/particles"))
    arguments = parser.parse_args()
    tasks = [(name, arguments.laps, arguments.out / name) for name in arguments.samplers]
    rows = [row for part in shared_out(measure, tasks, arguments.workers) for row in part]
    recipe = load_recipe("manifold-quick", {})
    problem = recipe.problem()
    index, _ = split(len(problem.obs), recipe.watch.held_out)
    obs = problem.obs[index]
    assert problem.reference is not None
    perfect = exact_draws(obs.y, obs.A.tensors()["matrix"], recipe.data.options()["sigma"], recipe.seed)
    figures = {f"perfect_{key}": v for key, v in compared(perfect, problem.reference[index], recipe.seed).items()}
    last = {row["sampler"]: row for row in rows}  # laps are in order
    figures |= {f"{key}_{name}": row[key] for name, row in last.items() for key in ("off_curve", "along", "elsewhere")}
    print(record("particles", figures, rows))


if __name__ == "__main__":
    main()
