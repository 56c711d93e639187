"""The paper's first experiment: `python -m benchmarks.manifold [--laps 32] [--recipe manifold] [--out runs/manifold]`.

Runs (or resumes) the recipe, then measures laps by the Sinkhorn divergence (squared distance, regularisation 1e-3).
Only E-steps and M-steps count as computing time; evaluation is excluded. The divergence is measured in three ways:

- `draws`, as in the paper: 16,384 draws of a lap, or prior samples every fourth lap, against 16,384 random points of
  the truth.
- `pooled`: all draws of a lap against the same random points. These points have a sampling error, which is the same in
  every lap.
- `even`: all draws against evenly spaced points of the truth, which have no sampling error.

`benchmarks/chance.py` measures how much these values vary between laps for exact posterior draws. Four more measures
are zero for exact draws of the true points: the distance of the draws from the curve, the fraction on another branch
than the true points, W₂ to the true points along the curve, and sliced W₂ to the true points. Prior samples, four times
as many, are compared with the whole curve by their positions along it. For comparison, all measures are also computed
for exact posterior draws along the curve. The result is written after every measured lap.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffem
from diffem.datasets.manifold import truth
from diffem.em.watch import split
from diffem.metrics.distances import sliced_wasserstein
from diffem.metrics.transport import entropic_cost
from diffem.report.pictures import marginals
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import parse_change
from diffem.runs.rundir import RunDir

from .curve import REG, DivergenceFrom, along_truth, even_truth, exact_draws, without_floor, worst_rise
from .record import RESULTS, ROOT, record

FLOORS = 3  # pairs of sets of the truth whose divergence is measured
# number of evenly spaced points; a blur of √REG needs no more (512 and 4,096 agree to a thousandth)
EVEN = 1 << 12
# Factor for the number of prior samples that are compared along the curve; 16,384 samples have a large sampling error.
PRIOR = FLOORS + 1
RISES = {
    "sinkhorn_draws": "worst_rise",
    "sinkhorn_pooled": "worst_rise_pooled",
    "sinkhorn_even": "worst_rise_even",
    "off_curve": "worst_rise_off_curve",
}


class Divergences:
    """The three divergences of all draws `(n, d)` of a lap."""

    def __init__(self, random: Tensor, even: Tensor) -> None:
        self.random, self.even = DivergenceFrom(random), DivergenceFrom(even)

    def __call__(self, draws: Tensor) -> dict[str, float]:
        draws = draws.to(self.random.target)
        own = entropic_cost(draws, None, REG)
        some = draws[: len(self.random.target)]
        return {"draws": self.random(some), "pooled": self.random(draws, own), "even": self.even(draws, own)}


def figures_of(rows: list[dict[str, float]]) -> dict[str, float]:
    """The figures of the laps measured so far."""
    laps = rows[1:]
    priors = [row["sinkhorn_prior"] for row in rows if "sinkhorn_prior" in row]
    figures: dict[str, float] = {"sinkhorn_start": priors[0], "sinkhorn_prior": priors[-1], "laps": len(laps)}
    if laps:
        figures |= {key: laps[-1][key] for key in RISES}
        figures |= {name: worst_rise([row[key] for row in laps]) for key, name in RISES.items()}
        figures["compute_minutes"] = sum(row["e_seconds"] + row["m_seconds"] for row in laps) / 60
    return figures


def on_event(event: str, data: dict[str, Any]) -> None:
    if event == "lap":
        print({k: round(v, 4) if isinstance(v, float) else v for k, v in data.items()}, flush=True)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="manifold")
    parser.add_argument("--out", default="runs/manifold")
    parser.add_argument("--laps", type=int, default=32)
    parser.add_argument("--points", type=int, default=16384)
    parser.add_argument("--prior-steps", type=int, default=256)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "manifold.png")
    parser.add_argument("--set", nargs="*", default=[])
    arguments = parser.parse_args(words)
    changes = dict(parse_change(text) for text in arguments.set) | {"laps": arguments.laps}
    run = diffem.fit(None, arguments.recipe, arguments.out, changes=changes, on_event=on_event)
    folder, recipe = RunDir(run.path), RunDir(run.path).recipe()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = recipe.problem()
    assert problem.reference is not None
    n, seed = arguments.points, recipe.seed
    trained_on = split(len(problem.obs), recipe.watch.held_out)[0]
    obs, reference = problem.obs[trained_on], problem.reference[trained_on]
    random = [some.to(device) for some in truth((FLOORS + 1) * n, seed, reference.shape[1]).split(n)]
    divergences = Divergences(random[0], even_truth(EVEN, seed, reference.shape[1]).to(device))
    floors = [divergences.random(other) for other in random[1:]]
    A, sigma = obs.A.tensors()["matrix"].to(device), recipe.data.options()["sigma"]
    perfect = exact_draws(obs.y.to(device), A, sigma, seed)
    perfect_figures = divergences(perfect) | without_floor(perfect, reference, seed)
    fixed = {f"perfect_{key}": v for key, v in perfect_figures.items()}
    fixed |= {"floor": min(floors), "highest_floor": max(floors)}
    fixed["perfect_prior_along"] = along_truth(torch.cat(random), seed)
    fixed["sliced_floor"] = sliced_wasserstein(truth(len(reference), seed), reference, p=2)
    print(fixed, flush=True)
    rows, pictures = [], {}
    for k in range(arguments.laps + 1):
        start = time.monotonic()
        row: dict[str, float] = {"lap": k}
        if k in (1, 2) or k % 4 == 0 or k == arguments.laps:
            prior = diffem.load(run.path, k, device)
            samples = prior.sample(PRIOR * n, steps=arguments.prior_steps, seed=1, progress=False)
            row["sinkhorn_prior"], row["prior_along"] = divergences.random(samples[:n]), along_truth(samples, seed)
            if k in (0, 1, 2, 4, 8, 16) or k == arguments.laps:
                pictures[f"lap {k}"] = samples[:n].cpu().numpy()
        if k:
            store = DrawStore.of_lap(folder, k, len(obs), recipe.e_step.shard)
            draws = store.all().to(device)
            row |= {f"sinkhorn_{key}": v for key, v in divergences(draws).items()}
            row |= without_floor(draws, reference[store.owners(recipe.e_step.draws)], seed)
            metrics = folder.metrics()[k]
            row |= {key: metrics[key] for key in ("e_seconds", "m_seconds", "rejected", "guards", "loss", "chi2")}
        rows.append(row)
        path = record("manifold", fixed | figures_of(rows), rows, arguments.results)
        print({key: round(v, 5) for key, v in row.items()}, f"({time.monotonic() - start:.1f} s)", flush=True)
    print(figures_of(rows), path)
    pictures["truth"] = random[0].cpu().numpy()
    arguments.picture.write_bytes(marginals(pictures))


if __name__ == "__main__":
    main()
