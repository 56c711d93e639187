"""The paper's first experiment: `python -m benchmarks.manifold [--laps 32] [--recipe manifold] [--out runs/manifold]`.

Runs (or resumes) the recipe and measures every lap when it ends by the Sinkhorn divergence (squared distance,
regularisation 1e-3). The measures lie in the run folder: with `--minutes`, a run can continue elsewhere without the
draws of earlier laps. A stopped run has a result for the laps that it made. Only E-steps and M-steps count as
computing time; evaluation is excluded.

The divergence is measured in three ways:

- `draws`, as in the paper: 16,384 draws of a lap, or prior samples every fourth lap, against 16,384 random points of
  the truth.
- `pooled`: all draws of a lap against the same random points. These points have a sampling error, which is the same in
  every lap.
- `even`: all draws against evenly spaced points of the truth, which have no sampling error.

`benchmarks/chance.py` measures how much these values vary between laps for exact posterior draws. Four more measures
are zero for exact draws of the true points: the distance of the draws from the curve, the fraction on another branch
than the true points, W₂ to the true points along the curve, and sliced W₂ to the true points. Prior samples, four times
as many, are compared with the whole curve by their positions along it. For comparison, all measures are also computed
for exact posterior draws along the curve.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffem
from diffem.core.interruption import Preempted
from diffem.datasets.manifold import truth
from diffem.em.split import split
from diffem.metrics.distances import sliced_wasserstein
from diffem.metrics.transport import entropic_cost
from diffem.report.pictures import marginals
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import Recipe, load_recipe, parse_change
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


class Measures:
    """The measures of the laps of a run, which are computed once and kept in the run folder.

    Args:
        recipe: The recipe of the run.
        folder: The run folder.
        points: The number of random points of the truth, of draws and of prior samples that are compared.
        prior_steps: The number of sampling steps of prior samples.
    """

    def __init__(self, recipe: Recipe, folder: RunDir, points: int, prior_steps: int) -> None:
        self.recipe, self.folder, self.points, self.prior_steps = recipe, folder, points, prior_steps
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        problem = recipe.problem()
        assert problem.reference is not None
        trained_on = split(len(problem.obs), recipe.watch.held_out)[0]
        self.obs, self.reference = problem.obs[trained_on], problem.reference[trained_on]
        self.random = [x.to(self.device) for x in self._truth((FLOORS + 1) * points).split(points)]
        even = even_truth(EVEN, recipe.seed, self.reference.shape[1]).to(self.device)
        self.divergences = Divergences(self.random[0], even)
        self.file = folder.path / "measures.json"
        self.rows: list[dict[str, float]] = json.loads(self.file.read_text()) if self.file.is_file() else []

    def _truth(self, n: int) -> Tensor:
        return truth(n, self.recipe.seed, self.reference.shape[1])

    def of_truth(self) -> dict[str, float]:
        """The measures of exact posterior draws, and the divergences between sets of the truth."""
        seed = self.recipe.seed
        A, sigma = self.obs.A.tensors()["matrix"].to(self.device), self.recipe.data.options()["sigma"]
        exact = exact_draws(self.obs.y.to(self.device), A, sigma, seed)
        measures = self.divergences(exact) | without_floor(exact, self.reference, seed)
        floors = [self.divergences.random(other) for other in self.random[1:]]
        return {f"perfect_{key}": v for key, v in measures.items()} | {
            "floor": min(floors),
            "highest_floor": max(floors),
            "perfect_prior_along": along_truth(torch.cat(self.random), seed),
            "sliced_floor": sliced_wasserstein(self._truth(len(self.reference)), self.reference, p=2),
        }

    def catch_up(self) -> None:
        """Measure the finished laps that are not measured yet."""
        for lap in range(len(self.rows), self.folder.laps_done() + 1):
            start = time.monotonic()
            self.rows.append(self._of_lap(lap))
            self.file.write_text(json.dumps(self.rows))
            shown = {key: round(value, 5) for key, value in self.rows[-1].items()}
            print(shown, f"({time.monotonic() - start:.1f} s)", flush=True)

    def _of_lap(self, lap: int) -> dict[str, float]:
        row: dict[str, float] = {"lap": lap}
        if lap in (1, 2) or lap % 4 == 0 or lap == self.recipe.laps:
            samples = self.prior_samples(lap, PRIOR * self.points)
            row["sinkhorn_prior"] = self.divergences.random(samples[: self.points])
            row["prior_along"] = along_truth(samples, self.recipe.seed)
        if lap:
            store = DrawStore.of_lap(self.folder, lap, len(self.obs), self.recipe.e_step.shard)
            draws = store.all().to(self.device)
            row |= {f"sinkhorn_{key}": v for key, v in self.divergences(draws).items()}
            row |= without_floor(draws, self.reference[store.owners(self.recipe.e_step.draws)], self.recipe.seed)
            metrics = self.folder.lap_metrics(lap)
            row |= {key: metrics[key] for key in ("e_seconds", "m_seconds", "rejected", "guards", "loss", "chi2")}
        return row

    def prior_samples(self, lap: int, n: int) -> Tensor:
        """`(n, d)` samples of the prior of a lap; the first ones do not depend on n."""
        prior = diffem.load(self.folder.path, lap, self.device)
        return prior.sample(n, steps=self.prior_steps, seed=1, progress=False)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="manifold")
    parser.add_argument("--out", default="runs/manifold")
    parser.add_argument("--laps", type=int, default=32)
    parser.add_argument("--points", type=int, default=16384)
    parser.add_argument("--prior-steps", type=int, default=256)
    parser.add_argument("--minutes", type=float, help="time limit; the same command resumes the run")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "manifold.png")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipe")
    arguments = parser.parse_args(words)
    changes = dict(parse_change(text) for text in arguments.set) | {"laps": arguments.laps}
    recipe, folder = load_recipe(arguments.recipe, changes), RunDir(arguments.out)
    measures = Measures(recipe, folder, arguments.points, arguments.prior_steps)

    def on_event(event: str, data: dict[str, Any]) -> None:
        if event == "lap":
            measures.catch_up()

    try:
        diffem.fit(None, recipe, arguments.out, minutes=arguments.minutes, on_event=on_event)
    except Preempted as stop:
        print(f"stopped: {stop}")
        if measures.rows:
            print(record("manifold", figures_of(measures.rows), measures.rows, arguments.results))
        return
    measures.catch_up()
    figures = measures.of_truth() | figures_of(measures.rows)
    print(figures, record("manifold", figures, measures.rows, arguments.results))
    shown = [lap for lap in (0, 1, 2, 4, 8, 16) if lap < arguments.laps] + [arguments.laps]
    pictures = {f"lap {lap}": measures.prior_samples(lap, arguments.points).cpu().numpy() for lap in shown}
    pictures["truth"] = measures.random[0].cpu().numpy()
    arguments.picture.write_bytes(marginals(pictures))


if __name__ == "__main__":
    main()
