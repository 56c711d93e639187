"""GPU out-of-memory handling, with real and simulated errors: `python -m benchmarks.oom [--observations 49152]`.

Runs one lap of a U-Net on images of 32×32, three times: with micro-batches and training batches far too large for the
device; with micro-batches that fit, as the reference run; and the same with out-of-memory errors raised in the E-step
and in the M-step. Every run must end, and its draws must be those of the reference run. Set TORCHDYNAMO_DISABLE=1,
otherwise every batch size is compiled.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.em import e_step
from diffem.em.trainer import Trainer
from diffem.nn.networks import make_network

from .record import RESULTS, record

NETWORK = {"hidden": [128, 128], "blocks": 3, "heads": [0, 0], "embedding": 64}
EVENT = (3, 32, 32)
CALM = {"e_step.batch": 1024, "train.batch": 1024}


def observations(count: int) -> Observations:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, *EVENT, generator=generator)
    mask = torch.rand(count, 1, *EVENT[1:], generator=generator) < 0.5
    return Observations(torch.where(mask, x, 0), operators.Mask(mask), sigma=0.1)


def start() -> priors.DiffusionPrior:
    torch.manual_seed(0)
    return priors.DiffusionPrior(make_network("unet", EVENT, NETWORK), settings={"kind": "unet", **NETWORK})


def one_lap(obs: Observations, out: Path, batch: int, device: str, changes: dict[str, Any]) -> dict[str, Any]:
    """Make one lap from an untrained network; returns its row and its draws."""
    shutil.rmtree(out, ignore_errors=True)
    told: list[int] = []
    recipe = {
        "name": "oom",
        "data": {"source": "given"},
        "laps": 1,
        "network": {"kind": "unet", **NETWORK},
        "e_step": {
            "steps": 1, "iterations": 1, "shard": len(obs), "batch": batch, "bound": 1e9, "chi2": 1e9, "redraws": 0
        },
        "train": {"steps": 4, "batch": batch, "lr": 1e-4},
        "watch": {"held_out": 0, "samples": 16, "draws": 2},
    }  # fmt: skip

    def on_event(event: str, data: dict[str, Any]) -> None:
        if event == "memory":
            told.append(data["batch"])

    began = time.monotonic()
    run = diffem.fit(obs, recipe, out, start=start(), changes=changes, device=device, progress=False, on_event=on_event)
    return {
        "asked": changes.get("e_step.batch", batch),
        "tried_again": told,
        "e_batch": run.laps[-1]["e_batch"],
        "loss": run.laps[-1]["loss"],
        "seconds": time.monotonic() - began,
        "draws": np.load(sorted((run.path / "laps" / "001" / "draws").glob("*.npy"))[0]),
    }


def failing(function: Callable[..., Any], times: int) -> Callable[..., Any]:
    """Wrap a function so that its first few calls raise an out-of-memory error."""
    left = [times]

    def called(*args: Any, **options: Any) -> Any:
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError("simulated")
        return function(*args, **options)

    return called


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--observations", type=int, default=49152)
    parser.add_argument("--out", type=Path, default=Path("runs/oom"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    obs = observations(arguments.observations)
    found = {}

    def note(name: str, changes: dict[str, Any]) -> None:
        found[name] = one_lap(obs, arguments.out / name, arguments.observations, device, changes)
        print(name, {key: value for key, value in found[name].items() if key != "draws"}, flush=True)

    note("real", {})
    note("calm", CALM)
    draw_shard, loss = e_step.draw_shard, Trainer._loss
    e_step.draw_shard, Trainer._loss = failing(draw_shard, 2), failing(loss, 2)  # type: ignore[assignment, method-assign]
    note("simulated", CALM)
    e_step.draw_shard, Trainer._loss = draw_shard, loss  # type: ignore[method-assign]
    calm = found["calm"].pop("draws")
    rows = []
    for name, row in found.items():
        difference = float(np.abs(row.pop("draws") - calm).max()) if "draws" in row else 0.0
        rows.append({"run": name, **row, "largest_difference": difference, "size": float(np.abs(calm).max())})
    figures = {f"{row['run']}_difference": row["largest_difference"] for row in rows}
    print(figures)
    print(record("oom", figures, rows, arguments.results))


if __name__ == "__main__":
    main()
