"""Blurred images and the loss on measured values: `python -m benchmarks.blurs --data FOLDER [--only determined]`.

The data are 3,000 MNIST images at 14×14 in [-2, 2]. Each is blurred by its own anisotropic Gaussian kernel (5×5,
circular, widths 0.5 to 1.5 pixels) with its own noise level (0.05 to 0.3). The network is an MLP of 3 × 384, trained
for three laps. Three losses are compared:

- `determined`: weight 0.8 for `train.measured`, as the library computes it;
- `gain`: the same weight, but each direction is weighted by the square of the gain of A (AᵀA in place of D);
- `none`: weight 0, which is EM.

Each row contains, for one lap, the mean squared error of a draw and of the mean of 8 draws on observations of the run,
the coverage of their 90 % intervals, and seconds. Lap 0 is the Gaussian start. FOLDER contains
`train-images-idx3-ubyte`, or the same file with `.gz`.
"""

from __future__ import annotations

import argparse
import gzip
import math
import tempfile
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import diffem
from diffem import Observations, operators
from diffem.em.expectation import posterior_from_recipe
from diffem.em.split import split
from diffem.metrics import coverage
from diffem.runs.recipe import Recipe, load_recipe

from .record import earlier, record

IMAGES, DRAWS, EVALUATED = 3000, 8, 128
WEIGHTS = {"determined": 0.8, "gain": 0.8, "none": 0.0}
RECIPE: dict[str, Any] = {
    "name": "blurs",
    "data": {"source": "given"},
    "laps": 3,
    "sigma_min": 0.01,
    "sigma_max": 20.0,
    "network": {"kind": "mlp", "hidden": [384, 384, 384], "dropout": 0.05},
    "e_step": {"steps": 16, "iterations": 2, "shard": 4096},
    "train": {"steps": 1200, "first_steps": 2400, "batch": 128, "lr": 1.0e-3, "final_lr": 1.0e-5, "ema": 0.995},
    "watch": {"held_out": 64, "draws": 8, "samples": 16},
}


def images(folder: Path, count: int) -> Tensor:
    """The first MNIST images, averaged to 14×14, in [-2, 2]. The file may be compressed (.gz)."""
    file = folder / "train-images-idx3-ubyte"
    content = file.read_bytes() if file.exists() else gzip.decompress(file.with_suffix(".gz").read_bytes())
    raw = np.frombuffer(content, dtype=np.uint8)[16:].reshape(-1, 28, 28)[:count]
    return torch.from_numpy(raw.astype(np.float32)).reshape(-1, 14, 2, 14, 2).mean((2, 4)) / 63.75 - 2


def kernels(count: int, generator: torch.Generator) -> Tensor:
    """Gaussian kernels `(count, 5, 5)` of sum 1, each with its own two widths and angle."""
    width = 0.5 + torch.rand(count, 2, 1, 1, generator=generator)
    angle = math.pi * torch.rand(count, 1, 1, generator=generator)
    row, column = torch.meshgrid(*(torch.arange(-2.0, 3.0),) * 2, indexing="ij")
    along = angle.cos() * column + angle.sin() * row
    across = angle.cos() * row - angle.sin() * column
    kernel = torch.exp(-0.5 * ((along / width[:, 0]) ** 2 + (across / width[:, 1]) ** 2))
    return kernel / kernel.sum((1, 2), keepdim=True)


def problem(folder: Path, count: int = IMAGES, seed: int = 0) -> tuple[Tensor, Observations]:
    """The images and their blurred, noisy observations."""
    generator, x = torch.Generator().manual_seed(seed), images(folder, count)
    A = operators.Blur(kernels(count, generator))
    sigma = 0.05 + 0.25 * torch.rand(count, generator=generator)
    return x, Observations(A(x) + sigma[:, None, None] * torch.randn(x.shape, generator=generator), A, sigma=sigma)


class GainSquared:
    """The weight AᵀA in place of D."""

    resident = True

    def __init__(self, A: operators.Operator, *others: Any) -> None:
        self.A = A

    def weighted_energy(self, r: Tensor, index: Tensor) -> Tensor:
        return self.A[index](r).square().sum()


def errors(prior: Any, recipe: Recipe, obs: Observations, x: Tensor) -> dict[str, float]:
    posterior = posterior_from_recipe(prior, obs, recipe.e_step)
    draws = posterior.sample(DRAWS, steps=recipe.e_step.steps, seed=1, progress=False)
    return {
        "draw": float((draws[0] - x).square().mean()),
        "mean8": float((draws.mean(0) - x).square().mean()),
        "coverage90": float(coverage(draws, x)),
    }


def measure(weight: str, folder: Path) -> list[dict[str, Any]]:
    """Measure one run; returns one row per lap."""
    x, obs = problem(folder)
    recipe = load_recipe(RECIPE, {"train.measured": WEIGHTS[weight]})
    some = split(len(obs), recipe.watch.held_out)[0][:EVALUATED]
    began, cpu, rows = time.monotonic(), time.process_time(), []
    with tempfile.TemporaryDirectory() as out:
        with patch("diffem.em.maximization.determined", GainSquared) if weight == "gain" else nullcontext():
            run = diffem.fit(obs, recipe, Path(out) / "run", progress=False)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        for lap, metrics in enumerate(run.laps):
            row: dict[str, Any] = {"weight": weight, "lap": lap} | errors(
                diffem.load(run.path, lap), recipe, obs[some], x[some]
            )
            keys = ("start_seconds", "e_seconds", "m_seconds", "predictive_log_likelihood", "hidden_spread", "warnings")
            row |= {key: metrics[key] for key in keys if key in metrics}
            rows.append(row)
            print(row, flush=True)
    rows[-1] |= {"run_seconds": seconds, "cpu_seconds": cpu}
    print(f"{weight}: {seconds:.0f} s, {cpu:.0f} s of computing", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=list(WEIGHTS), default=list(WEIGHTS))
    arguments = parser.parse_args()
    kept = [row for row in earlier("blurs") if row["weight"] not in arguments.only]
    rows = kept + [row for weight in arguments.only for row in measure(weight, arguments.data)]
    last = {(row["weight"]): row for row in rows}
    figures = {f"{key}_{weight}": row[key] for weight, row in last.items() for key in ("draw", "mean8", "coverage90")}
    figures |= {f"{key}_{weight}": row[key] for weight, row in last.items() for key in ("run_seconds", "cpu_seconds")}
    print(record("blurs", figures, rows))


if __name__ == "__main__":
    main()
