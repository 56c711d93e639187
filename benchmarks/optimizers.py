"""Adam and Muon on the same denoiser: `python -m benchmarks.optimizers --assets DIR [--runs adam-1e-3 muon-2e-3 …]`.

Trains the U-Net of `--set network…` on complete CIFAR-10 images at `--side` pixels, once for each optimizer and
learning rate, with the library's own M-step: the same weights at the start, the same images and the same noise. The
learning rate falls linearly to zero. The denoising loss of `--held-out` images is measured `--points` times on the
way, with averaged weights. Losses after a part of the images depend on the learning rate, which is still high; compare
the last.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diffem.core.compile import compile_network
from diffem.datasets import cifar10
from diffem.em.denoising import denoising_losses, noise_levels
from diffem.em.maximization import maximization
from diffem.em.noise_law import noise_law
from diffem.em.training_blocks import TrainingRecord
from diffem.nn.networks import make_network
from diffem.priors import DiffusionPrior
from diffem.runs.recipe import Recipe, load_recipe, parse_change

from .record import RESULTS, record

RUNS = ("adam-1e-3", "adam-2e-3", "adam-4e-3", "adam-8e-3", "muon-2e-3", "muon-5e-3", "muon-1e-2")
EVALUATED = 256  # images per batch of the measurement
SMALL = ("network={kind: unet, hidden: [48, 96], blocks: 2, heads: [0, 4], embedding: 128}", "train.warmup=100")
SMALL += ("train.ema=0.99",)


def images(folder: Path, side: int) -> Tensor:
    """All training images at `side` × `side` pixels, with standard deviation 1."""
    x = cifar10.from_uint8(cifar10.images(folder))
    x = functional.avg_pool2d(x, x.shape[-1] // side)
    return x / x.std()


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", nargs="+", default=RUNS)
    parser.add_argument("--images", type=int, default=128_000, help="training examples of a run")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--side", type=int, default=16)
    parser.add_argument("--points", type=int, default=4, help="measurements per run")
    parser.add_argument("--held-out", type=int, default=2048, help="images that are not trained on")
    parser.add_argument("--set", nargs="*", default=SMALL, help="changes of the recipe cifar10-clean")
    parser.add_argument("--assets", type=Path, default=Path(os.environ.get("DIFFEM_ASSETS", "assets")))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    x = images(arguments.assets / "cifar10", arguments.side)
    rows: list[dict[str, Any]] = []
    for run in arguments.runs:
        optimizer, rate = run.split("-", 1)
        changes = {"train.optimizer": optimizer, "train.lr": float(rate), "train.batch": arguments.batch}
        changes |= {"train.steps": arguments.images // arguments.batch, "train.checkpoint_seconds": 1e-9}
        recipe = load_recipe("cifar10-clean", {**dict(parse_change(text) for text in arguments.set), **changes})
        for row in losses(recipe, x, arguments.held_out, arguments.points):
            rows.append({"optimizer": optimizer, "lr": float(rate), **row})
            print(rows[-1], flush=True)
    last = {f"{row['optimizer']}_{row['lr']:g}": row["loss"] for row in rows if row["images"] >= arguments.images}
    print(record("optimizers", {**last, "images": arguments.images, "side": arguments.side}, rows, arguments.results))


def make_prior(recipe: Recipe, shape: tuple[int, ...], device: torch.device) -> DiffusionPrior:
    """An untrained prior; its weights are always the same."""
    torch.manual_seed(0)
    network = make_network(recipe.network.kind, shape, recipe.network.options("kind"))
    return DiffusionPrior(network, shape, sigma_min=recipe.sigma_min, sigma_max=recipe.sigma_max).to(device)


def losses(recipe: Recipe, x: Tensor, held_out: int, points: int) -> list[dict[str, float]]:
    """Train, and return the held-out loss after each of `points` equal parts of the training."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train, unseen = x[:-held_out].to(device), x[-held_out:].to(device)
    shape, options, rows = tuple(x.shape[1:]), recipe.train, list[dict[str, float]]()
    prior, averaged = make_prior(recipe, shape, device), make_prior(recipe, shape, device)
    if device.type == "cuda":
        compile_network(prior.network)
    levels = noise_levels(noise_law(options.noise, prior.sigma_min, prior.sigma_max))

    @torch.no_grad()
    def measure(done: int, weights: Iterable[Tensor], seconds: float) -> None:
        for p, weight in zip(averaged.network.parameters(), weights, strict=True):
            p.copy_(weight)
        loss = denoising_losses(averaged.eval(), unseen, levels, EVALUATED).mean()
        rows.append({"images": done * options.batch, "loss": float(loss), "seconds": seconds})

    def checkpoint(done: int, state: dict[str, Tensor], record: TrainingRecord) -> None:
        if done * points >= (len(rows) + 1) * options.steps:
            measure(done, [t for name, t in state.items() if name.startswith("average.")], record.seconds)

    training = maximization(
        prior, train, options, steps=options.steps, seed=0, lap=1, precision=recipe.precision, checkpoint=checkpoint
    )
    measure(options.steps, prior.network.parameters(), training.seconds)
    return rows


if __name__ == "__main__":
    main()
