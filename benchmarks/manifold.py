"""The paper's first experiment: `python -m benchmarks.manifold [--laps 32] [--recipe manifold] [--out runs/manifold]`.

Runs (or continues) the recipe, then measures laps by the Sinkhorn divergence (squared distance, regularisation 1e-3). Only E and M count as
computing; measuring is apart. Two ways:

- as the paper does, 16,384 draws of a lap, or samples of its prior every fourth lap, against as many random points of the truth. There is
  chance in both sets: two of the truth are a distance apart, the floor, which differs by a factor of three from pair to pair.
- all draws of a lap, pooled, against evenly spaced points of the truth, which have no chance in them.

Four more have no floor: how far the draws lie from the curve, how many lie on another branch of it than the points behind their
observations, how they lie along it (W₂ of their places on the curve, to those of the true points), and sliced W₂ to the same points.
What perfect draws give, drawn from the exact posterior along the curve, stands beside all of them.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy
import torch

import diffem
from diffem.data.manifold import curve, truth
from diffem.em.watch import split
from diffem.metrics.distances import entropic_cost, sliced_wasserstein
from diffem.randomness import Stream
from diffem.report.pictures import marginals
from diffem.runs.rundir import RunDir

from .record import RESULTS, ROOT, record

REG, FLOORS = 1e-3, 3
LINE = 1 << 13  # points that stand for the curve where places on it are looked for
EVEN = 1 << 12  # and where masses are moved to it: a blur of √REG needs no more (512 and 4,096 agree to a thousandth)
STRAY = 0.5  # a draw this far from the curve, whose coordinates span [-2, 2], lies between its branches
ELSEWHERE = 0.5  # and one this far from its true point, along the curve, took another branch


class Against:
    """The Sinkhorn divergence from a fixed set of points, whose own term is computed once."""

    def __init__(self, target: torch.Tensor) -> None:
        self.target = target
        self.own = entropic_cost(target, None, REG)

    def __call__(self, x: torch.Tensor) -> float:
        x = x.to(self.target)
        return entropic_cost(x, self.target, REG) - 0.5 * (entropic_cost(x, None, REG) + self.own)


def even_truth(n: int, seed: int, dimension: int = 5) -> torch.Tensor:
    """The truth without chance: n points of the curve at even positions, `(n, dimension)`."""
    return curve((torch.arange(n, dtype=torch.float64) + 0.5) / n, seed, dimension).float()


def on_curve(x: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Of points `(n, d)`: how far they are from the curve, and where on it the nearest place lies, as a length from its beginning; `(n,)` each."""
    line = even_truth(LINE, seed, x.shape[1]).to(x)
    lengths = torch.cat([line.new_zeros(1), line.diff(dim=0).norm(dim=1)]).double().cumsum(0)
    parts = [torch.cdist(some, line).min(1) for some in x.split(4096)]
    return torch.cat([p.values for p in parts]).double(), lengths[torch.cat([p.indices for p in parts])]


def distance_from_curve(x: torch.Tensor, seed: int) -> torch.Tensor:
    return on_curve(x, seed)[0]


def exact_draws(y: torch.Tensor, A: torch.Tensor, sigma: float, seed: int) -> torch.Tensor:
    """A draw from the exact posterior of each observation y `(n, m)` through A `(n, m, d)`, the prior being the truth: `(n, d)`."""
    line = even_truth(LINE, seed, A.shape[2]).to(A)
    u = Stream(seed, "manifold exact draws").uniform(torch.arange(len(y), device=y.device), (1,), dtype=torch.float64)
    chosen = []
    for y_i, A_i, u_i in zip(y.split(1024), A.split(1024), u.split(1024), strict=True):
        residual = y_i.unsqueeze(2) - A_i @ line.T  # (n, m, LINE)
        ladder = torch.softmax(-0.5 * residual.square().sum(1).double() / sigma**2, 1).cumsum(1)
        chosen.append((ladder < u_i * ladder[:, -1:]).sum(1))
    return line[torch.cat(chosen)]


def without_floor(draws: torch.Tensor, truths: torch.Tensor, seed: int) -> dict[str, float]:
    """Of all draws `(n, d)`: mean squared distance from the curve and the fraction that strays; the fraction that lies elsewhere on it than the
    true points `(n, d)` behind the observations; along the curve and sliced, W₂ to those."""
    distance, along = on_curve(draws, seed)
    true = on_curve(truths.to(draws), seed)[1]
    return {
        "off_curve": float(distance.square().mean()),
        "strays": float((distance > STRAY).double().mean()),
        "elsewhere": float(((along - true).abs() > ELSEWHERE).double().mean()),
        "along": float((along.sort().values - true.sort().values).square().mean().sqrt()),
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
    trained_on = split(len(problem.obs), recipe.watch.held_out)[0]
    obs, reference = problem.obs[trained_on], problem.reference[trained_on]
    random = [some.to(device) for some in truth((FLOORS + 1) * n, recipe.seed, reference.shape[1]).split(n)]
    from_random = Against(random[0])
    from_even = Against(even_truth(EVEN, recipe.seed, reference.shape[1]).to(device))
    floors = [from_random(other) for other in random[1:]]
    A = obs.A.tensors()["matrix"]
    perfect = exact_draws(obs.y.to(device), A.to(device), recipe.data.options()["sigma"], recipe.seed)
    perfect_figures = {"perfect_draws": from_random(perfect[:n]), "perfect_pooled": from_even(perfect)}
    perfect_figures |= {f"perfect_{key}": v for key, v in without_floor(perfect, reference, recipe.seed).items()}
    print(f"floors {floors}, perfect draws {perfect_figures}", flush=True)
    rows, pictures = [], {}
    for k in range(arguments.laps + 1):
        start = time.monotonic()
        row: dict[str, float] = {"lap": k}
        if k in (1, 2) or k % 4 == 0 or k == arguments.laps:
            samples = diffem.load(run.path, k, device).sample(n, steps=arguments.prior_steps, seed=1, progress=False)
            row["sinkhorn_prior"] = from_random(samples)
            if k in (0, 1, 2, 4, 8, 16) or k == arguments.laps:
                pictures[f"lap {k}"] = samples.cpu().numpy()
        if k:
            store = [torch.from_numpy(numpy.load(f)) for f in sorted((folder.lap(k) / "draws").glob("*.npy"))]
            draws = torch.cat([s.flatten(0, 1) for s in store])
            row["sinkhorn_draws"] = from_random(draws[:n])
            row["sinkhorn_pooled"] = from_even(draws)
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
        "sinkhorn_pooled": laps[-1]["sinkhorn_pooled"],
        "floor": min(floors),
        "highest_floor": max(floors),
        **perfect_figures,
        "worst_rise": worst_rise([row["sinkhorn_draws"] for row in laps]),
        "worst_rise_pooled": worst_rise([row["sinkhorn_pooled"] for row in laps]),
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
