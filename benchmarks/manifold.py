"""The paper's first experiment: `python -m benchmarks.manifold [--laps 32] [--recipe manifold] [--out runs/manifold]`.

Runs (or continues) the recipe, then measures every lap against the truth: Sinkhorn divergence (squared distance, regularisation 1e-3)
of pooled posterior draws π_k and of prior samples q_k. Only E and M count as computing; measuring is apart.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy
import torch

import diffem
from diffem.data.manifold import truth
from diffem.metrics import sinkhorn
from diffem.report.pictures import marginals
from diffem.runs.rundir import RunDir

from .record import RESULTS, record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="manifold")
    parser.add_argument("--out", default="runs/manifold")
    parser.add_argument("--laps", type=int, default=32)
    parser.add_argument("--points", type=int, default=16384)
    parser.add_argument("--prior-steps", type=int, default=256)
    parser.add_argument("--results", type=Path, default=RESULTS)
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
    n = arguments.points
    target = truth(2 * n, recipe.seed, recipe.data.options("source")["dimension"]).to(device)
    floor = sinkhorn(target[:n], target[n:])
    print(f"floor {floor:.5f}")
    rows, pictures = [], {}
    for k in range(arguments.laps + 1):
        start = time.monotonic()
        prior = diffem.load(run.path, k, device)
        samples = prior.sample(n, steps=arguments.prior_steps, seed=1, progress=False)
        row = {"lap": k, "sinkhorn_prior": sinkhorn(samples, target[:n])}
        if k:
            store = [torch.from_numpy(numpy.load(f)) for f in sorted((folder.lap(k) / "draws").glob("*.npy"))]
            draws = torch.cat([s.flatten(0, 1) for s in store])
            row["sinkhorn_draws"] = sinkhorn(draws[:n].to(device), target[:n])
            metrics = folder.metrics()[k]
            row |= {key: metrics[key] for key in ("e_seconds", "m_seconds", "rejected", "guards", "loss", "chi2")}
        rows.append(row)
        if k in (0, 1, 2, 4, 8, 16, 32) or k == arguments.laps:
            pictures[f"lap {k}"] = samples.cpu().numpy()
        print({key: round(v, 5) for key, v in row.items()}, f"({time.monotonic() - start:.1f} s)", flush=True)
    laps = rows[1:]
    worst = max(
        (
            row[key] / min(r[key] for r in laps[:i]) - 1
            for key in ("sinkhorn_draws",)
            for i, row in enumerate(laps)
            if i
        ),
        default=0.0,
    )
    figures = {
        "sinkhorn_draws": laps[-1]["sinkhorn_draws"],
        "sinkhorn_prior": laps[-1]["sinkhorn_prior"],
        "sinkhorn_start": rows[0]["sinkhorn_prior"],
        "floor": floor,
        "worst_rise": worst,
        "compute_minutes": sum(row["e_seconds"] + row["m_seconds"] for row in laps) / 60,
        "laps": arguments.laps,
    }
    print(figures)
    print(record("manifold", figures, rows, arguments.results))
    pictures["truth"] = target[:n].cpu().numpy()
    (arguments.results / "manifold.png").write_bytes(marginals(pictures))


if __name__ == "__main__":
    main()
