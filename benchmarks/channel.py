"""Measurements that can only be simulated: `python -m benchmarks.channel`.

FashionMNIST at 16×16 pixels with values from 0 to 1, seen by three channels (`operators.Channel`): photon counts with a
peak of 5 and of 30 photons, and one bit per pixel, the comparison of the pixel with a threshold that is random for
every pixel and observation. They are compared with what is possible without channels: an estimate of x as the
observation, with Gaussian noise of the level that the estimate has on average, and the same recipe, network and number
of steps. Errors are mean squared errors of draws, of the mean of eight draws and of the data themselves (the estimate).

Measurements simulated from draws are compared with real measurements of other images; two halves of the real ones give
the distance that chance alone produces. `--only KIND METHOD` measures one row, and `--merge FOLDER` joins such results,
`FOLDER/*/channel.json`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import diffem
from diffem import Observations, operators
from diffem.core.randomness import Stream
from diffem.em.evaluation import posterior_draws
from diffem.em.screening import largest_plausible
from diffem.metrics.distances import sliced_wasserstein
from diffem.runs.rundir import RunDir

from .record import RESULTS, merge, record

ASSETS = Path(os.environ.get("DIFFEM_ASSETS", Path.home() / ".cache" / "diffem" / "assets"))
KINDS, METHODS = ("poisson-5", "poisson-30", "onebit"), ("channel", "gaussian")
COUNT, MEASURED, DRAWS, SPLITS = 5000, 1024, 8, 32
RECIPE: dict[str, Any] = {
    "name": "channel",
    "data": {"source": "given"},
    "laps": 4,
    "sigma_min": 0.02,
    "sigma_max": 20.0,
    "network": {"kind": "unet", "hidden": [48, 96], "blocks": 1, "heads": [0, 0], "space_to_depth": 2},
    "e_step": {"method": "conditional", "steps": 12, "shard": 8192},
    "train": {
        "steps": 1000,
        "first_steps": 2000,
        "batch": 64,
        "lr": 2e-3,
        "schedule": "constant",
        "warmup": 50,
        "ema": 0.995,
        "conditioned": 0.8,
        "noise": {"law": "lognormal", "mean": -0.6, "std": 1.3},
        "restart": False,
    },
    "stages": [{"lap": 4, "train": {"schedule": "linear", "steps": 1250}}],
    "watch": {"draws": 4, "samples": 64, "held_out": 64},
}


def images(count: int) -> Tensor:
    """FashionMNIST at 16×16 pixels, `(count, 1, 16, 16)`, from 0 to 1."""
    path = ASSETS / "fashion-mnist" / "train-images-idx3-ubyte.gz"
    pixels = np.frombuffer(gzip.decompress(path.read_bytes()), np.uint8, offset=16).reshape(-1, 1, 28, 28)
    x = torch.from_numpy(pixels[:count].copy()).float() / 255
    return functional.avg_pool2d(functional.pad(x, (2, 2, 2, 2)), 2)


def poisson(peak: float) -> operators.Channel:
    """Photon counts; the estimate is the count divided by the peak."""

    def simulate(x: Tensor, rng: Any) -> Tensor:
        return rng.poisson(peak * x.clamp(min=0))

    return operators.Channel(simulate, lambda y: y / peak)


def one_bit(threshold: Tensor) -> operators.Channel:
    """Whether a pixel with a little noise exceeds its threshold, which is uniform: on average the bit is the pixel."""

    def simulate(x: Tensor, rng: Any, threshold: Tensor) -> Tensor:
        return (x + 0.05 * rng.normal(*x.shape[1:]) > threshold).to(x.dtype)

    def features(y: Tensor, threshold: Tensor) -> Tensor:
        return torch.cat([y, threshold], 1)

    return operators.Channel(simulate, features, (1, 16, 16), estimate=lambda y, threshold: y, threshold=threshold)


def observed(kind: str, x: Tensor, seed: int) -> Observations:
    """The observations of images x `(n, 1, 16, 16)`."""
    index = torch.arange(len(x))
    if kind == "onebit":
        A = one_bit(Stream(seed, "thresholds").uniform(index, tuple(x.shape[1:])))
    else:
        A = poisson(float(kind.removeprefix("poisson-")))
    return Observations(A.simulate(x, Stream(seed, "real measurements"), index), A)


def halves(one: Tensor, other: Tensor) -> tuple[float, float]:
    """The mean distance between half of one set and the other half of the other set, and its deviation over halves."""
    found = []
    for k in range(SPLITS):
        first, second = Stream(0, "halves").permutation(len(one), k).tensor_split(2)
        found.append(sliced_wasserstein(one[first], other[second], slices=256))
    return float(np.mean(found)), float(np.std(found, ddof=1))


def measure(
    kind: str, method: str, out: Path, seed: int, changes: dict[str, Any], count: int = COUNT
) -> dict[str, Any]:
    """Fit one method to one kind of observations and compare its draws with the truth and with y."""
    x = images(count)
    channel = observed(kind, x, seed)
    estimate = channel.backprojected()
    noise = float((estimate - x).square().mean().sqrt())
    obs = channel if method == "channel" else Observations(estimate, sigma=noise)
    began, cpu = time.monotonic(), time.process_time()
    run = diffem.fit(obs, RECIPE, out, seed, changes=changes, report=False)
    row: dict[str, Any] = {"kind": kind, "method": method, "minutes": (time.monotonic() - began) / 60}
    row |= {"cpu_minutes": (time.process_time() - cpu) / 60, "threads": torch.get_num_threads(), "noise": noise}
    row["mse_data"] = float((estimate - x).square().mean())
    recipe, rows = RunDir(run.path).recipe(), torch.arange(MEASURED)
    part, truth = obs[rows], x[rows]
    bound = largest_plausible(run.load(0), recipe.e_step.bound)
    for lap in range(1, recipe.last_lap):  # the error of every lap, from a single draw
        drawn = posterior_draws(run.load(lap), part, recipe, 1, bound)
        row[f"mse_draw_lap{lap}"] = float((drawn[0] - truth).square().mean())
    for lap, name in ((0, "_start"), (recipe.last_lap, "")):
        drawn = posterior_draws(run.load(lap), part, recipe, DRAWS, bound)
        row[f"mse_draw{name}"] = float((drawn - truth).square().mean())
        row[f"mse_mean{name}"] = float((drawn.mean(0) - truth).square().mean())
    seen = channel[rows]
    A = seen.A
    assert isinstance(A, operators.Channel)
    real = A.features(seen.y)[:, :1].flatten(1)
    again = A.features(A.simulate(drawn[0], Stream(seed, "measured again"), rows))[:, :1].flatten(1)
    (row["distance"], _), (row["chance"], row["chance_std"]) = halves(again, real), halves(real, real)
    row["laps"] = [{k: v for k, v in lap.items() if isinstance(v, float | int)} for lap in run.laps]
    return row


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    found = {}
    keys = ("mse_draw", "mse_mean", "mse_draw_start", "mse_mean_start", "minutes", "distance", "chance")
    for row in rows:
        found |= {f"{key}_{row['kind']}_{row['method']}": row[key] for key in keys}
        found[f"mse_data_{row['kind']}"] = row["mse_data"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", nargs=2, metavar=("KIND", "METHOD"), help=f"{KINDS} and {METHODS}")
    parser.add_argument("--merge", type=Path, help="a folder with the results of --only")
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-channel"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--images", type=int, default=COUNT)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    arguments = parser.parse_args()
    changes = {key: json.loads(value) for key, value in (change.split("=", 1) for change in arguments.set)}
    if arguments.merge is not None:
        print(merge("channel", sorted(arguments.merge.glob("*/channel.json")), figures, arguments.results))
        return
    pairs = [(k, m) for k in KINDS for m in METHODS] if arguments.only is None else [tuple(arguments.only)]
    rows = []
    for kind, method in pairs:
        rows.append(
            measure(kind, method, arguments.out / f"{kind}-{method}", arguments.seed, changes, arguments.images)
        )
        print({key: value for key, value in rows[-1].items() if key != "laps"}, flush=True)
        record("channel", figures(rows), rows, arguments.results)


if __name__ == "__main__":
    main()
