"""EM with weighted draws: `python -m benchmarks.particles [--laps 12] [--workers 2]`.

Runs the recipe `manifold-quick` with different samplers in the E-step, which take about the same number of evaluations
per draw. `ddpm2` and the predictor–corrector use `mmps` without correction. `tds` moves eight particles per draw and
corrects the error of `mmps` by weights. A second variant of `tds` picks four draws from each set of particles, at the
cost of one. For each lap, the draws are compared with the true points: their distance from the curve, W₂ along the
curve, and the fraction on another branch. Two references are computed too: exact posterior draws on the true curve, and
the samplers with a known prior, a narrow tube around the true curve, so that nothing has to be learned.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from diffem.em.expectation import posterior_from_recipe
from diffem.em.run import run_recipe
from diffem.em.split import split
from diffem.priors import MixturePrior
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import Recipe, load_recipe
from diffem.runs.rundir import RunDir

from .curve import even_truth, exact_draws, without_floor
from .record import record
from .workers import shared_out

COMPONENTS, TUBE = 512, 0.012  # Gaussians along the true curve, about as wide as the learned prior

# two measured values, so conjugate gradients converge in two iterations
GUIDED = {"e_step.solver": "cg", "e_step.iterations": 2}
CASES: dict[str, dict[str, Any]] = {
    # name → changes of the recipe; all take about the same number of evaluations per observation
    "ddpm2": {**GUIDED, "e_step.sampler": "ddpm2", "e_step.sampler_options": {}, "e_step.steps": 512},
    "pc": {
        **GUIDED,
        "e_step.sampler": "pc",
        "e_step.sampler_options": {"corrections": 1, "tau": 0.1, "down_to": 0.1},
        "e_step.steps": 344,
    },
    "tds": {
        "e_step.sampler": "tds",
        "e_step.sampler_options": {"particles": 8},
        "e_step.solver": "direct",
        "e_step.steps": 64,
    },
    "tds picks": {
        "e_step.sampler": "tds",
        "e_step.sampler_options": {"particles": 8, "picks": 4},
        "e_step.draws": 4,
        "e_step.solver": "direct",
        "e_step.steps": 64,
    },
}


def recipe_of(sampler: str, **changes: Any) -> Recipe:
    return load_recipe("manifold-quick", CASES[sampler] | changes)


def measure(sampler: str, laps: int, out: Path) -> list[dict[str, Any]]:
    recipe = recipe_of(sampler, laps=laps)
    problem = recipe.problem()
    index, _ = split(len(problem.obs), recipe.watch.held_out)
    assert problem.reference is not None
    truths = problem.reference[index]
    run_recipe(recipe, problem.obs, out, progress=False)
    rows: list[dict[str, Any]] = []
    for metrics in RunDir(out).metrics()[1:]:
        store = DrawStore.of_lap(RunDir(out), metrics["lap"], len(index), recipe.e_step.shard)
        behind = truths[store.owners(recipe.e_step.draws)]
        kept = {key: metrics[key] for key in ("lap", "rejected", "guards", "chi2", "e_seconds")}
        rows.append({"sampler": sampler, **kept, **without_floor(store.all(), behind, recipe.seed)})
        print(rows[-1], flush=True)
    return rows


def with_the_true_prior(sampler: str, count: int) -> dict[str, Any]:
    recipe = recipe_of(sampler)
    problem, options = recipe.problem(), recipe.e_step
    assert problem.reference is not None
    prior = MixturePrior(
        torch.ones(COMPONENTS),
        even_truth(COMPONENTS, recipe.seed),
        torch.full((COMPONENTS,), TUBE),
        sigma_min=recipe.sigma_min,
        sigma_max=recipe.sigma_max,
    )
    obs = problem.obs[:count]
    k = options.draws
    x, statistics = posterior_from_recipe(prior, obs, options).sample(
        k, steps=options.steps, sampler=options.sampler, return_stats=True, progress=False, **options.sampler_options
    )
    row = {"sampler": sampler, "lap": None, "evaluations": float(statistics.evaluations.double().sum(0).mean())}
    row |= {"chi2": float(torch.stack([obs.chi2(draw) for draw in x]).mean())}
    row |= without_floor(x.flatten(0, 1), problem.reference[:count].repeat(k, 1), recipe.seed)
    print(row, flush=True)
    return row


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--laps", type=int, default=12)
    parser.add_argument("--observations", type=int, default=4096, help="number of observations for the true prior")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--samplers", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--out", type=Path, default=Path("runs/particles"))
    arguments = parser.parse_args()
    tasks = [(name, arguments.laps, arguments.out / name) for name in arguments.samplers]
    rows = [row for part in shared_out(measure, tasks, arguments.workers) for row in part]
    alone = [(name, arguments.observations) for name in arguments.samplers]
    rows += shared_out(with_the_true_prior, alone, arguments.workers)
    recipe = load_recipe("manifold-quick", {})
    problem = recipe.problem()
    index, _ = split(len(problem.obs), recipe.watch.held_out)
    obs = problem.obs[index]
    assert problem.reference is not None
    perfect = exact_draws(obs.y, obs.A.tensors()["matrix"], recipe.data.options()["sigma"], recipe.seed)
    figures = {f"perfect_{key}": v for key, v in without_floor(perfect, problem.reference[index], recipe.seed).items()}
    last = {row["sampler"]: row for row in rows if row["lap"]}  # laps are in order
    figures |= {f"{key}_{name}": row[key] for name, row in last.items() for key in ("off_curve", "along", "elsewhere")}
    print(record("particles", figures, rows))


if __name__ == "__main__":
    main()
