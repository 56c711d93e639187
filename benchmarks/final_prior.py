"""The final prior of CIFAR-10 on a machine that may be taken away: `python -m benchmarks.final_prior --exports DIR`.

Starts `diffem fit cifar10-table1` with the given changes as a process of its own. As soon as this training of the final
prior has a checkpoint, its averaged weights are exported every `--every` seconds to `DIR/newest`, which is replaced as
a whole: whenever the machine is lost, the newest complete export can be copied from there and continued
(`final.start`). When the training ends, is stopped by `--minutes` or fails, FID and KID of samples of the newest export
are measured, so that the measurement depends on nobody. `--measure FOLDER` measures an export again, for example with
another sampler. `--compile`, in another process while the draws are made, fills torch's cache of compiled networks, so
that the training need not wait for the compiler. The result has the figures of `benchmarks.cifar10`, and is joined with
those of the laps (`benchmarks.cifar10 --join`).

    python -m benchmarks.final_prior --exports /somewhere/safe --minutes 20 --set start=weights/cifar10-rho75 \\
        final.start=weights/cifar10-rho75-final …
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import diffem
from diffem import InputError
from diffem.datasets import cifar10
from diffem.em.exports import ExportOptions, export_run, read_card
from diffem.em.maximization import maximization
from diffem.em.start import denoiser_to_train, load_start, set_noise_range
from diffem.em.unfinished import export_unfinished
from diffem.metrics import image_quality, load_extractor, make_reference
from diffem.report.pictures import grid
from diffem.runs.recipe import Recipe, load_recipe, parse_change
from diffem.runs.rundir import RunDir

from .cifar10 import prior_samples
from .record import RESULTS, record

PIECE_BYTES = 15_000_000
# `diffem` with the fastest convolutions of this GPU, as in the other benchmarks
DIFFEM = "import torch; torch.backends.cudnn.benchmark = True; from diffem.cli import main; main()"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--exports", type=Path, help="folder of the exports")
    what.add_argument("--compile", action="store_true", help="only compile training and sampling")
    what.add_argument("--measure", type=Path, help="an export to measure, without training")
    parser.add_argument("--out", type=Path, default=Path("runs/final"), help="the run")
    parser.add_argument("--set", nargs="*", default=[], help="changes of the recipe; it has no laps of its own")
    parser.add_argument("--minutes", type=float, help="stop the training after this time, as `diffem fit --minutes`")
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two exports")
    parser.add_argument("--assets", type=Path, default=Path(os.environ.get("DIFFEM_ASSETS", "assets")))
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--sampler", default="ddpm2")
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--name", default="cifar10-final")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(words)
    torch.backends.cudnn.benchmark = True
    if arguments.measure is not None:
        print(measure(arguments.measure, arguments))
        return
    changes = [f"data.folder={arguments.assets / 'cifar10'}", "laps=0", *arguments.set]
    recipe = load_recipe("cifar10-table1", dict(parse_change(text) for text in changes))
    if recipe.final is None or recipe.start is None:
        raise SystemExit("the final prior needs start=FOLDER, the weights that make the draws")
    if arguments.compile:
        compile_networks(recipe, arguments)
        return
    options = [word for change in changes for word in ("--set", change)]
    if arguments.minutes is not None:
        options += ["--minutes", str(arguments.minutes)]
    newest = arguments.exports / "newest"
    command = [sys.executable, "-c", DIFFEM, "fit", "cifar10-table1", "-o", str(arguments.out), *options]

    def about() -> ExportOptions:
        problem = recipe.problem()
        return {"obs": problem.obs, "range": problem.range}

    code = train(command, arguments.out, newest, arguments.every, about)
    print(f"the training ended with exit code {code}", flush=True)
    if newest.is_dir():
        print(measure(newest, arguments))
    else:
        raise SystemExit("the training has no checkpoint: there is nothing to measure")


def compile_networks(recipe: Recipe, arguments: argparse.Namespace) -> None:
    """Train the final prior for two steps on noise and draw one batch of samples, as the run will do."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    assert recipe.start is not None
    before = load_start(recipe.start)[0].to(device)
    set_noise_range(before, recipe)
    lap = recipe.at(recipe.last_lap)
    prior = denoiser_to_train(before, before, recipe, new_settings=recipe.network_from(recipe.last_lap))
    noise = torch.randn(4 * lap.train.batch, *prior.event_shape, device=device)
    maximization(prior, noise, lap.train, steps=2, seed=0, lap=1, precision=recipe.precision, progress=False)
    some = argparse.Namespace(**{**vars(arguments), "samples": arguments.batch, "steps": 2})
    prior_samples(prior, some)
    print("the networks are compiled", flush=True)


def train(command: list[str], run: Path, newest: Path, every: float, about: Callable[[], ExportOptions]) -> int:
    """Run the training, export its weights at intervals and at its end; returns its exit code.

    Args:
        about: Makes the options that describe the data; it is called while the training starts.
    """
    process = subprocess.Popen(command)
    code, options = None, ExportOptions()
    try:
        options = about()
        while code is None:
            try:
                code = process.wait(every)
            except subprocess.TimeoutExpired:
                _export(run, newest, options)
    finally:
        process.terminate()  # it saves its state; without effect if it has ended
        process.wait()
        _export(run, newest, options)
    return code


def _export(run: Path, newest: Path, about: ExportOptions) -> None:
    """Export the final prior, or the last checkpoint of its training if there is one. `newest` is always complete."""
    fresh, old = newest.with_name("next"), newest.with_name("old")
    for folder in (fresh, old):
        shutil.rmtree(folder, ignore_errors=True)
    try:
        directory = RunDir(run)
        write = export_run if directory.done(directory.recipe().last_lap) else export_unfinished
        write(run, fresh, **{**about, "dtype": "float16", "piece": PIECE_BYTES})
    except InputError as error:
        print(f"no export yet: {error}", flush=True)
        return
    if newest.exists():
        newest.rename(old)
    fresh.rename(newest)


def measure(folder: Path, arguments: argparse.Namespace) -> Path:
    """Measure FID and KID of samples of an exported prior against the complete training images; writes the result."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    extractor = load_extractor(arguments.assets / "fid" / "inception-2015-12-05.pt", device)
    reference = make_reference(cifar10.images(arguments.assets / "cifar10"), extractor)
    card = read_card(folder)
    training: dict[str, Any] = card["training"]
    began = time.monotonic()
    x = prior_samples(diffem.load(folder, device=device), arguments)
    sampling_seconds = time.monotonic() - began
    quality = {key: float(v) for key, v in image_quality(cifar10.to_uint8(x), reference, extractor).items()}
    arguments.results.mkdir(parents=True, exist_ok=True)
    (arguments.results / f"{arguments.name}.png").write_bytes(grid(x[:64].cpu().numpy(), 16))
    unfinished = training.get("unfinished")
    done = {} if unfinished is None else {"steps_done": unfinished["steps"]}
    figures = {
        f"fid_{arguments.samples // 1000}k": quality["fid"],
        "kid": quality["kid"],
        "samples": arguments.samples,
        "gpu_minutes": training["minutes"],
        "images_seen": training["images"],
        "laps": 1,
        "laps_before": card["lap"] - int(unfinished is None),  # a finished final prior counts as a lap
        "final": int(unfinished is None),
        **done,
    }
    rows = [{"lap": 1, "images": training["images"], "sampling_seconds": sampling_seconds, **figures, **quality}]
    return record(arguments.name, figures, rows, arguments.results)


if __name__ == "__main__":
    main()
