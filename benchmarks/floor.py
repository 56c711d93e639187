"""The best possible prior on CIFAR-10: `python -m benchmarks.floor --assets DIR [--settings beta] [--minutes 25]`.

Trains the network of `cifar10-clean` on complete images with the library's own M-step. EM on incomplete images cannot
give a better prior than this. Every setting trains for `--race` million images and is then measured with `--few`
samples for each of several moving averages of the weights. The setting with the lowest FID continues alone to the end
of the recipe's `train.steps`, at which the learning rate reaches zero. At `--at` million images and at the end it is
measured again: with `--few` samples for each average, and with `--samples` for the best average. The last weights are
also sampled with the other `--samplers`.

`--assets` is a folder with `cifar10/` and `fid/inception-2015-12-05.pt`; default: the environment variable
DIFFEM_ASSETS. Rows are written after every measurement. The same command resumes from the last measured point in
`--out`, and rows of other settings are kept. The best average of every measured point is saved in `--out` as a prior.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diffem.core.compile import compile_network
from diffem.core.interruption import Interruption, Preempted
from diffem.core.randomness import Stream
from diffem.datasets import cifar10
from diffem.em.checkpoint import read_checkpoint, recent_loss, write_checkpoint
from diffem.em.maximization import maximization
from diffem.em.training_blocks import TrainingRecord
from diffem.metrics.fid import Reference, frechet_distance, kernel_distance, make_reference
from diffem.metrics.inception import Extractor, features, load_extractor
from diffem.nn.networks import make_network
from diffem.priors import DiffusionPrior
from diffem.priors.files import save_prior
from diffem.runs.recipe import Recipe, load_recipe, parse_change

from .record import RESULTS, earlier, record

SETTINGS: dict[str, dict[str, Any]] = {
    "beta": {"train.noise.law": "beta"},
    "lognormal": {"train.noise.law": "lognormal"},
    "lognormal-slow": {"train.noise.law": "lognormal", "train.lr": 4e-4},
    "lognormal-wide": {"train.noise.law": "lognormal", "train.noise.std": 1.7},
    "lognormal-dropout": {"train.noise.law": "lognormal", "network.dropout": 0.13},
}
KEY = ("setting", "images", "ema", "sampler", "samples")  # the keys that identify a row
SEED = 1  # seed of the samples that are measured


@dataclass
class Training:
    """State of the training of one setting: number of steps, trainer state with the averages, and record."""

    recipe: Recipe
    folder: Path
    decays: list[float]
    done: int = 0
    state: dict[str, Tensor] | None = None
    averages: dict[str, Tensor] = field(default_factory=dict)  # "ema.DECAY.k" → average of parameter k
    record: TrainingRecord = field(default_factory=TrainingRecord)

    def __post_init__(self) -> None:
        kept = read_checkpoint(self.folder / "training.safetensors")
        if kept is not None:
            self.done, tensors, self.record = kept
            self.averages = {name: t for name, t in tensors.items() if name.startswith("ema.")}
            self.state = {name: t for name, t in tensors.items() if name not in self.averages}

    @property
    def images(self) -> int:
        return self.done * self.recipe.train.batch

    @property
    def finished(self) -> bool:
        return self.done >= self.recipe.train.steps

    def follow(self, done: int, state: dict[str, Tensor]) -> None:
        """Update the averages with the weights after `done` steps.

        They are Σ βⁿ⁻ⁱ wᵢ / Σ βⁿ⁻ⁱ over the steps so far, if the weights are constant between two updates. In contrast,
        a usual moving average keeps the random initial weights with weight βⁿ.
        """
        weights = [state[f"weight.{k}"] for k in range(sum(name.startswith("weight.") for name in state))]
        for decay in self.decays:
            if f"ema.{decay:g}.0" not in self.averages:
                self.averages |= {f"ema.{decay:g}.{k}": w.clone() for k, w in enumerate(weights)}
            else:
                share = (1 - decay ** (done - self.done)) / (1 - decay**done)
                torch._foreach_lerp_(self.average(decay), weights, share)
        self.done = done

    def average(self, decay: float) -> list[Tensor]:
        count = sum(name.startswith(f"ema.{decay:g}.") for name in self.averages)
        return [self.averages[f"ema.{decay:g}.{k}"] for k in range(count)]

    def train(self, prior: DiffusionPrior, images: Tensor, until: int, deadline: float) -> None:
        """Train until the given number of images, the end of the recipe's steps, or the deadline."""
        self.averages = {name: t.to(images.device) for name, t in self.averages.items()}
        interruption = Interruption()

        def checkpoint(done: int, state: dict[str, Tensor], record: TrainingRecord) -> None:
            self.follow(done, state)
            self.record = record
            if interruption.should_stop:
                self.state = {name: t.detach().clone() for name, t in state.items()}
            interruption.requested = self.images >= until or time.monotonic() > deadline

        options = self.recipe.train.model_copy(update={"checkpoint_seconds": 1e-9})  # after every block of steps
        with contextlib.suppress(Preempted):
            maximization(
                prior,
                images,
                options,
                steps=options.steps,
                seed=self.recipe.seed,
                lap=1,
                precision=self.recipe.precision,
                resume=None if self.state is None else (self.done, self.state, self.record),
                checkpoint=checkpoint,
                progress=False,
                interruption=interruption,
            )
            self.done, self.state = (
                options.steps,
                {},
            )  # the averages lack the last few steps, whose learning rate is almost zero

    def save(self) -> None:
        tensors = (self.state or {}) | self.averages
        write_checkpoint(self.folder / "training.safetensors", self.done, tensors, self.record)


def make_prior(recipe: Recipe, mean: Tensor) -> DiffusionPrior:
    """An untrained network as a prior; its weights are a function of the seed."""
    with torch.random.fork_rng([]):
        torch.manual_seed(Stream(recipe.seed, "network").integer())
        network = make_network(recipe.network.kind, cifar10.EVENT, recipe.network.options("kind"))
    return DiffusionPrior(
        network.to(mean.device),
        mean=mean,
        settings=recipe.network.model_dump(),
        sigma_min=recipe.sigma_min,
        sigma_max=recipe.sigma_max,
    )


@dataclass
class Judge:
    """Samples a prior with given weights and compares the samples with the training images."""

    prior: DiffusionPrior
    extractor: Extractor
    reference: Reference
    batch: int

    def load(self, weights: list[Tensor]) -> None:
        with torch.no_grad():
            for p, w in zip(self.prior.network.parameters(), weights, strict=True):
                p.copy_(w)

    def features(self, n: int, sampler: str, seed: int) -> Tensor:
        name, steps = sampler.rsplit("-", 1)
        x = self.prior.sample(n, int(steps), name, seed, batch_size=min(self.batch, n), progress=False)
        return features(cifar10.to_uint8(x), self.extractor, progress=False)

    def compare(self, values: Tensor) -> dict[str, float]:
        kid, kid_std = kernel_distance(values, self.reference)
        return {"fid": frechet_distance(values, self.reference), "kid": kid, "kid_std": kid_std}


class Floor:
    """The benchmark: trainings, measurements, and their rows."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.deadline = time.monotonic() + 60 * arguments.minutes
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        pixels = cifar10.images(arguments.assets / "cifar10")
        self.images = cifar10.from_uint8(pixels).to(self.device)
        self.rows: list[dict[str, Any]] = earlier("floor", arguments.results)
        changes = dict(parse_change(text) for text in arguments.set)
        self.trainings = {
            name: Training(
                load_recipe(arguments.recipe, changes | SETTINGS[name]), arguments.out / name, arguments.emas
            )
            for name in arguments.settings
        }
        self.networks: dict[str, DiffusionPrior] = {}
        self._judge: Judge | None = None
        self.pixels = pixels

    def prior(self, recipe: Recipe) -> DiffusionPrior:
        """An untrained prior: one object for all settings with the same network, since compilation takes a minute."""
        key = recipe.network.model_dump_json()
        fresh = make_prior(recipe, self.images.mean(0))
        if key in self.networks:
            self.networks[key].network.load_state_dict(fresh.network.state_dict())
            return self.networks[key]
        if self.device.type == "cuda":
            compile_network(fresh.network)
        self.networks[key] = fresh
        return fresh

    @property
    def judge(self) -> Judge:
        if self._judge is None:
            extractor = load_extractor(self.arguments.assets / "fid" / "inception-2015-12-05.pt", self.device)
            reference = make_reference(self.pixels, extractor, progress=False)
            recipe = next(iter(self.trainings.values())).recipe
            prior = make_prior(recipe, self.images.mean(0)).eval().requires_grad_(False)
            if self.device.type == "cuda":
                prior.accelerate(self.arguments.batch, precision="bf16", sampling=True)
            self._judge = Judge(prior, extractor, reference, self.arguments.batch)
        return self._judge

    def measured(self, setting: str, images: int, samples: int) -> bool:
        where = (setting, images, samples)
        return any((row["setting"], row["images"], row["samples"]) == where for row in self.rows)

    def add(self, setting: str, ema: float, sampler: str, values: Tensor, seconds: float) -> dict[str, Any]:
        training = self.trainings[setting]
        row = {"setting": setting, "images": training.images, "ema": ema, "sampler": sampler, "samples": len(values)}
        row |= self.judge.compare(values) | {"seconds": seconds}
        row |= {"training_seconds": training.record.seconds, "loss": recent_loss(training.record)}
        key = [row[name] for name in KEY]
        self.rows = [old for old in self.rows if [old[name] for name in KEY] != key] + [row]
        print({name: round(v, 4) if isinstance(v, float) else v for name, v in row.items()}, flush=True)
        record("floor", self.figures(), self.rows, self.arguments.results)
        return row

    def measure(self, setting: str, samples: int) -> None:
        """Measure a few samples for each average, then the best average with all samples if these are more."""
        arguments, training = self.arguments, self.trainings[setting]
        sampler, few, found = arguments.samplers[0], arguments.few, {}

        def draw(ema: float, n: int, seed: int, sampler: str = sampler) -> tuple[Tensor, float]:
            began = time.monotonic()
            self.judge.load(training.average(ema))
            values = self.judge.features(n, sampler, seed)
            return values, time.monotonic() - began

        for ema in arguments.emas:
            values, seconds = draw(ema, few, SEED)
            found[ema] = self.add(setting, ema, sampler, values, seconds)["fid"], values, seconds
        ema = min(found, key=lambda decay: found[decay][0])
        _, first, before = found[ema]
        if samples > few:
            values, seconds = draw(ema, samples - few, SEED + 1)
            self.add(setting, ema, sampler, torch.cat([first, values]), before + seconds)
        self.judge.load(training.average(ema))
        save_prior(self.judge.prior, training.folder / f"prior-{training.images}.safetensors", ema=ema)
        for other in arguments.samplers[1:] if training.finished else []:
            if time.monotonic() < self.deadline:
                self.add(setting, ema, other, *draw(ema, few, SEED, other))

    def go(self, setting: str, points: list[int], samples: int) -> bool:
        """Train a setting and measure it at each given number of images; returns False if the time is over before."""
        training = self.trainings[setting]
        for point in points:
            if training.images < point:
                training.train(self.prior(training.recipe), self.images, point, self.deadline)
                training.save()
            if training.images < point or time.monotonic() > self.deadline:
                return False
            if not self.measured(setting, training.images, samples):
                self.measure(setting, samples)
        return True

    def figures(self) -> dict[str, float]:
        """The lowest FID of every setting by number of samples and millions of images."""
        out: dict[str, float] = {}
        for row in self.rows:
            if row["sampler"] == self.arguments.samplers[0]:
                key = f"fid_{row['samples'] / 1000:g}k_{row['setting']}_{row['images'] / 1e6:.3g}m"
                out[key] = min(row["fid"], out.get(key, float("inf")))
        seen = max(self.rows, key=lambda row: row["images"], default=None)
        if seen is not None:
            out |= {"images_seen": seen["images"], "training_seconds": seen["training_seconds"]}
            out["images_per_s"] = seen["images"] / max(seen["training_seconds"], 1e-9)
        parameters = sum(p.numel() for p in self.judge.prior.parameters())
        return out | {"samples": self.arguments.samples, "parameters": parameters}

    def run(self) -> None:
        few, race = self.arguments.few, round(1e6 * self.arguments.race)
        if not all(self.go(name, [race], few) for name in self.trainings):
            return
        fids = {}
        for name in self.trainings:
            some = [row for row in self.rows if row["setting"] == name and row["samples"] == few]
            fids[name] = min((row["images"], row["fid"]) for row in some if row["images"] >= race)[1]
        winner = min(fids, key=fids.__getitem__)
        print(f"{winner} goes on: {fids}", flush=True)
        options = self.trainings[winner].recipe.train
        last = options.steps * options.batch
        points = sorted({min(round(1e6 * p), last) for p in self.arguments.at} | {last})
        self.go(winner, points, self.arguments.samples)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10-clean")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipe, for all settings")
    parser.add_argument("--settings", nargs="+", choices=list(SETTINGS), default=["beta", "lognormal"])
    parser.add_argument("--race", type=float, default=3.1, help="million images that every setting sees")
    parser.add_argument("--at", type=float, nargs="*", default=[7.2], help="million images to measure at")
    parser.add_argument("--emas", type=float, nargs="+", default=[0.999, 0.9995])
    parser.add_argument("--samplers", nargs="+", default=["ddpm2-64", "heun-18", "ddim-256"], help="NAME-STEPS")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--few", type=int, default=5_000, help="samples for choosing settings and averages")
    parser.add_argument("--batch", type=int, default=1000, help="samples drawn at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing new after this")
    parser.add_argument("--assets", type=Path, default=Path(os.environ.get("DIFFEM_ASSETS", "assets")))
    parser.add_argument("--out", type=Path, default=Path("runs/floor"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    torch.backends.cudnn.benchmark = True
    Floor(arguments).run()


if __name__ == "__main__":
    main()
