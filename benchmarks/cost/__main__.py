"""`python -m benchmarks.cost`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch

from diffem.runs.recipe import load_recipe

from ..record import RESULTS, record
from .measuring import measure

SMALL = {"kind": "unet", "hidden": [32, 64, 128], "blocks": 2, "heads": [0, 4, 0], "embedding": 64}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--devices", nargs="+", default=["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"])
    parser.add_argument("--quick", action="store_true", help="few rounds of a small batch: for a test")
    parser.add_argument("--rounds", type=int, default=None)
    parser.add_argument("--threads", type=int, default=1, help="on the CPU")
    parser.add_argument("--gpu-batch", type=int, default=256)
    parser.add_argument("--gpu-recipe", default="cifar10-fast", help="recipe whose network is used on the GPU")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    figures: dict[str, float] = {}
    rows: list[Any] = []
    for name in arguments.devices:
        device = torch.device(name)
        settings, batch = SMALL, 2 if arguments.quick else 4
        if device.type == "cuda" and not arguments.quick:
            settings, batch = load_recipe(arguments.gpu_recipe).network.model_dump(), arguments.gpu_batch
        count = arguments.rounds or (3 if arguments.quick else 21)
        more, lines = measure(device, settings, batch, count)
        figures, rows = figures | more, rows + lines
    print(" ".join(f"{name}={value:.4g}" for name, value in figures.items()))
    print(record("cost", figures, rows, arguments.results))


if __name__ == "__main__":
    main()
