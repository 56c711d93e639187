"""The paper's first experiment: `python -m benchmarks.manifold [--laps 32] [--recipe manifold] [--out runs/manifold]`.

Runs (or continues) the recipe, then measures laps by the Sinkhorn divergence (squared distance, regularisation 1e-3, 16,384 points): of pooled
posterior draws π_k, every lap, and of prior samples q_k, every fourth. Only E and M count as computing; measuring is apart.
Against random points of the truth there is chance in the measure: two such sets are a distance apart, the floor, which differs by a factor of
five from pair to pair. So all the draws are measured, in sets, against the true points behind their own observations, which perfect
draws would reproduce; from lap to lap that is the measure, and the one against random points stands beside it.
Two more have no floor: how far the draws lie from the curve, and how they lie along it (sliced W₂ to the same true points).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import mean

import numpy
import torch

import diffem
from diffem.data.manifold import curve, truth
from diffem.em.watch import split
from diffem.metrics.distances import entropic_cost, sliced_wasserstein
from diffem.report.pictures import marginals
from diffem.runs.rundir import RunDir

from .record import RESULTS, ROOT, record

REG, FLOORS = 1e-3, 3
STRAY = 0.5  # a draw this far from the curve, whose coordinates span [-2, 2], lies between its branches


class Against:
    """The Sinkhorn divergence from fixed sets of points, set by set; their own terms are computed once."""

    def __init__(self, *targets: torch.Tensor) -> None:
        self.targets = targets
        self.own = [entropic_cost(target, None, REG) for target in targets]

    def __call__(self, *sets: torch.Tensor) -> list[float]:
        values = []
        for x, target, own in zip(sets, self.targets, self.own, strict=True):
            x = x.to(target)
            values.append(entropic_cost(x, target, REG) - 0.5 * (entropic_cost(x, None, REG) + own))
        return values


def distance_from_curve(x: torch.Tensor, seed: int) -> torch.Tensor:
    """Of points `(n, d)`: `(n,)`."""
    z = (torch.arange(1 << 13, dtype=torch.float64) + 0.5) / (1 << 13)
    line = curve(z, seed, x.shape[1]).to(x)
    return torch.cat([torch.cdist(some, line).amin(1) for some in x.split(4096)]).double()


def without_floor(draws: torch.Tensor, truths: torch.Tensor, seed: int) -> dict[str, float]:
    """Of all draws `(n, d)`: mean squared distance from the curve, the fraction that strays, sliced W₂ to the true points `(n, d)`."""
    distance = distance_from_curve(draws, seed)
    return {
        "off_curve": float(distance.square().mean()),
        "strays": float((distance > STRAY).double().mean()),
        "sliced": sliced_wasserstein(draws, truths.to(draws), p=2),
    }


def worst_rise(values: list[float]) -> float:
    """By how much a value exceeds the lowest before it, at worst, as a fraction of the latter."""
    return max((value / min(values[:i]) - 1 for i, value in enumerate(values) if i), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="manifold")
    parser.add_argument("--out", default="runs/manifold")
    parser.add_argument("--laps", type=int, default=32)
    parser.add_argument("--points", type=int, default=16384)
    parser.add_argument("--prior-steps", type=int, default=256)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "manifold.png")
    parser.add_argument("--set", nargs="*", default=[])
    arguments = parser.parse_args()
    from diffem.runs.recipe import parse_change

    changes = dict(parse_change(text) for text in arguments.set) | {"laps": arguments.laps}

    def say(event: str, data: dict) -> None:
        if event == "lap":
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in data.items()}, flush=True)

    run = diffem.fit(None, arguments.recipe, arguments.out, changes=changes, say=say)
    folder, recipe = RunDir(run.path), RunDir(run.path).recipe()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    problem = recipe.problem()
    assert problem.reference is not None
    n = arguments.points
    reference = problem.reference[split(len(problem.obs), recipe.watch.held_out)[0]]
    random = [some.to(device) for some in truth((FLOORS + 1) * n, recipe.seed, reference.shape[1]).split(n)]
    behind = [some.to(device) for some in reference.split(n)]
    from_random, from_own = Against(random[0]), Against(*behind)
    floors = [from_random(other)[0] for other in random[1:]]
    perfect = from_random(behind[0])[0]
    print(f"floors {floors}, observations' own truths {perfect:.5f}", flush=True)
    rows, pictures = [], {}
    for k in range(arguments.laps + 1):
        start = time.monotonic()
        row: dict[str, float] = {"lap": k}
        if k in (1, 2) or k % 4 == 0 or k == arguments.laps:
            samples = diffem.load(run.path, k, device).sample(n, steps=arguments.prior_steps, seed=1, progress=False)
            row["sinkhorn_prior"] = from_random(samples)[0]
            if k in (0, 1, 2, 4, 8, 16) or k == arguments.laps:
                pictures[f"lap {k}"] = samples.cpu().numpy()
        if k:
            store = [torch.from_numpy(numpy.load(f)) for f in sorted((folder.lap(k) / "draws").glob("*.npy"))]
            draws = torch.cat([s.flatten(0, 1) for s in store])
            row["sinkhorn_draws"] = from_random(draws[:n])[0]
            row["sinkhorn_own"] = mean(from_own(*draws.split(n)))
            row |= without_floor(draws.to(device), reference, recipe.seed)
            metrics = folder.metrics()[k]
            row |= {key: metrics[key] for key in ("e_seconds", "m_seconds", "rejected", "guards", "loss", "chi2")}
        rows.append(row)
        print({key: round(v, 5) for key, v in row.items()}, f"({time.monotonic() - start:.1f} s)", flush=True)
    laps = rows[1:]
    figures = {
        "sinkhorn_draws": laps[-1]["sinkhorn_draws"],
        "sinkhorn_prior": laps[-1]["sinkhorn_prior"],
        "sinkhorn_start": rows[0]["sinkhorn_prior"],
        "sinkhorn_own": laps[-1]["sinkhorn_own"],
        "floor": min(floors),
        "highest_floor": max(floors),
        "perfect_draws": perfect,
        "worst_rise": worst_rise([row["sinkhorn_draws"] for row in laps]),
        "worst_rise_own": worst_rise([row["sinkhorn_own"] for row in laps]),
        "worst_rise_off_curve": worst_rise([row["off_curve"] for row in laps]),
        "sliced_floor": sliced_wasserstein(truth(len(reference), recipe.seed), reference, p=2),
        "compute_minutes": sum(row["e_seconds"] + row["m_seconds"] for row in laps) / 60,
        "laps": arguments.laps,
    }
    print(figures)
    print(record("manifold", figures, rows, arguments.results))
    pictures["truth"] = random[0].cpu().numpy()
    arguments.picture.write_bytes(marginals(pictures))


if __name__ == "__main__":
    main()
