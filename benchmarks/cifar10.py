"""The paper's second experiment: `python -m benchmarks.cifar10 [--recipe NAME] [--set laps=6 …] [--assets DIR]`.

Runs (or resumes) the recipe on CIFAR-10 with deleted pixels and computes measures that need the complete images. After
every E-step it measures the error of the draws on the deleted pixels. At selected laps it measures FID and KID of prior
samples, and of the draws of the last lap, one per observation. With `--draw-steps`, these draws are made anew for the
measurement: a lap may keep draws of earlier priors, and is trained on draws of the prior before its own. Only the run
counts as GPU time; evaluation is excluded. `--assets` is a folder with `cifar10/` and `fid/inception-2015-12-05.pt`;
default: the environment variable DIFFEM_ASSETS.

A run that continues another one from its weights is measured by itself; `--join FIRST SECOND --name NAME` joins the
results of such pieces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import diffem
from diffem.core.interruption import Interruption, Preempted
from diffem.datasets import cifar10
from diffem.em.run import run_recipe
from diffem.files.reading import read_json
from diffem.files.writing import write_bytes, write_json
from diffem.metrics import image_quality, load_extractor, make_reference, mse_unmeasured
from diffem.observations import Problem
from diffem.priors import DiffusionPrior
from diffem.report.pictures import grid
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import Recipe, load_recipe, parse_change
from diffem.runs.rundir import RunDir

from .record import RESULTS, record, without_folders

KEPT = ("e_seconds", "m_seconds", "rejected", "kept", "redrawn", "guards", "chi2", "heldout_chi2", "loss", "steps")
KEPT += ("predictive_log_likelihood", "log_likelihood", "rounds", "e_batch", "warnings", "images")


def main() -> None:
    arguments = _arguments()
    if arguments.join:
        print(join_pieces(arguments.name, arguments.join, arguments.results))
        return
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    changes = {"data.folder": str(arguments.assets / "cifar10")} | dict(parse_change(text) for text in arguments.set)
    recipe = load_recipe(arguments.recipe, changes)
    problem = recipe.problem()
    draw_errors = _DrawErrors(RunDir(arguments.out), problem, recipe)
    if not arguments.measure:
        interruption = Interruption()
        if arguments.minutes is not None:
            interruption.stop_after(arguments.minutes)
        with contextlib.suppress(Preempted):
            run_recipe(
                recipe, problem.obs, arguments.out, device=device, on_event=draw_errors, interruption=interruption
            )
    if not arguments.run_only:
        print(_measure(arguments, recipe, problem, draw_errors, device))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--recipe", default="cifar10-fast")
    parser.add_argument("--name", help="name of the result; default: that of the recipe")
    parser.add_argument("--out", type=Path, default=Path("runs/cifar10"))
    parser.add_argument("--set", nargs="*", default=[])
    parser.add_argument("--assets", type=Path, default=Path(os.environ.get("DIFFEM_ASSETS", "assets")))
    parser.add_argument("--fid-laps", nargs="*", type=int, help="laps whose prior is sampled; default: the last")
    parser.add_argument("--samples", type=int, default=50_000, help="prior samples for FID; 0: only FID of the draws")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--sampler", default="ddpm2")
    parser.add_argument("--draw-steps", type=int, help="measure one new draw per observation, with this many steps")
    parser.add_argument("--batch", type=int, default=1000)
    parser.add_argument("--minutes", type=float, help="stop after this time, as `diffem fit --minutes` does")
    parser.add_argument("--measure", action="store_true", help="measure only the laps that exist, without running")
    parser.add_argument("--run-only", action="store_true", help="measure only the errors of the draws")
    parser.add_argument("--join", type=Path, nargs="+", help="results of the pieces of one run, in their order")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser.parse_args()


def _measure(
    arguments: argparse.Namespace, recipe: Recipe, problem: Problem, draw_errors: _DrawErrors, device: torch.device
) -> Path:
    """Measure the laps of the run and the draws of the last one, and write the result."""
    folder = RunDir(arguments.out)
    extractor = load_extractor(arguments.assets / "fid" / "inception-2015-12-05.pt", device)
    reference = make_reference(cifar10.images(arguments.assets / "cifar10"), extractor)
    quality = partial(image_quality, reference=reference, extractor=extractor)
    laps = folder.metrics()
    rows = _lap_rows(arguments, laps, draw_errors, quality, device)
    last = len(laps) - 1
    if arguments.draw_steps:
        assert problem.reference is not None
        draws = _new_draws(diffem.load(arguments.out, last, device), problem.obs, arguments)
        rows[-1]["mse_deleted_new"] = mse_unmeasured(draws.cpu(), problem.reference, problem.obs)
    else:
        store = DrawStore.of_lap(folder, last, draw_errors.count, recipe.e_step.shard)
        # one per observation, because FID falls with the number of images
        draws = torch.cat([store.read(k)[0] for k in range(len(store))])
    of_draws = quality(cifar10.to_uint8(draws))
    rows[-1]["fid_draws"] = float(of_draws["fid"])
    # FID falls with the number of samples, so the number is part of the key
    of_prior = {f"fid_{arguments.samples // 1000}k": "fid", "kid": "kid"} if arguments.samples else {}
    figures = {name: rows[-1][key] for name, key in of_prior.items()} | {
        "fid_draws": float(of_draws["fid"]),
        "kid_draws": float(of_draws["kid"]),
        "samples": arguments.samples,
        "gpu_minutes": rows[-1]["gpu_minutes"],
        "laps": last,
        "laps_before": laps[0].get("laps_before", 0),
        "final": int(recipe.final is not None and last == recipe.last_lap),
        "images_seen": laps[-1]["images"],
        "rejected_last_lap": laps[-1]["rejected"],
        "mse_deleted_last_lap": rows[-1].get("mse_deleted", float("nan")),
    }
    if device.type == "cuda":
        figures["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    print(figures)
    return record(_name(arguments, recipe), figures, rows, arguments.results)


def _lap_rows(
    arguments: argparse.Namespace,
    laps: list[dict[str, Any]],
    draw_errors: _DrawErrors,
    quality: Callable[[torch.Tensor], dict[str, float]],
    device: torch.device,
) -> list[dict[str, Any]]:
    """One row per lap; quality: FID and KID of pixels `(n, 3, 32, 32)`, measured for samples of selected laps."""
    name = _name(arguments, draw_errors.recipe)
    rows: list[dict[str, Any]] = []
    minutes = float(laps[0].get("minutes_before", 0.0))
    for k, metrics in enumerate(laps):
        minutes += (metrics["seconds"] - draw_errors.seconds.get(k, 0.0)) / 60
        row = {"lap": k, "gpu_minutes": minutes} | {key: metrics[key] for key in KEPT if key in metrics}
        row |= draw_errors.errors.get(k, {})
        if arguments.samples and k in (arguments.fid_laps if arguments.fid_laps is not None else [len(laps) - 1]):
            began = time.monotonic()
            x = prior_samples(diffem.load(arguments.out, k, device), arguments)
            sampled = time.monotonic()
            row |= {key: float(v) for key, v in quality(cifar10.to_uint8(x)).items()}
            row |= {"sampling_seconds": sampled - began, "measuring_seconds": time.monotonic() - sampled}
            write_bytes(arguments.results / f"{name}-lap{k}.png", grid(x[:64].cpu().numpy(), 16))
        print({key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()}, flush=True)
        rows.append(row)
    return rows


def join_pieces(name: str, pieces: list[Path], folder: Path) -> Path:
    """Join the results of the pieces of one run. Laps are counted from the start of the first piece.

    The result has the command of the last piece, and each figure of the last piece that has it; rows of the other
    pieces keep their sources.
    """
    read = [json.loads(piece.read_text()) for piece in pieces]
    for piece in read:
        piece["command"] = without_folders(piece["command"])
    *others, last = read
    rows: list[dict[str, Any]] = []
    for piece in read:
        origin = {key: piece[key] for key in ("command", "commit", "machine", "date")} if piece in others else {}
        before = piece["figures"]["laps_before"]
        # lap 0 of a later piece is the last lap of the piece before it
        rows += [origin | row | {"lap": before + row["lap"]} for row in piece["rows"] if row["lap"] or not before]
    figures: dict[str, float] = {}
    for piece in read:  # the final prior has no draws of its own
        figures |= piece["figures"]
    figures |= {"laps": rows[-1]["lap"], "laps_before": 0}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(last | {"name": name, "figures": figures, "rows": rows}, indent=1) + "\n")
    return path


def _name(arguments: argparse.Namespace, recipe: Any) -> str:
    return str(arguments.name or recipe.name)


def prior_samples(prior: Any, arguments: argparse.Namespace) -> torch.Tensor:
    if prior.is_exact:
        return prior.sample(arguments.samples)
    assert isinstance(prior, DiffusionPrior)
    if prior.mean.is_cuda:
        prior.accelerate(arguments.batch, precision="bf16", sampling=True)
    return prior.sample(
        arguments.samples, arguments.steps, arguments.sampler, seed=1, batch_size=arguments.batch, progress=False
    )


def _new_draws(prior: Any, obs: Any, arguments: argparse.Namespace) -> torch.Tensor:
    """One posterior draw per observation, `(n, 3, 32, 32)`."""
    if prior.mean.is_cuda:
        prior.accelerate(arguments.batch, precision="bf16", sampling=True)
    posterior = prior.posterior(obs.to(prior.mean.device), method="conditional")
    return posterior.sample(
        steps=arguments.draw_steps, sampler="ddpm2", seed=1, batch_size=arguments.batch, progress=False
    )


class _DrawErrors:
    """A listener that prints every lap and measures the draws of each E-step on the deleted pixels."""

    def __init__(self, folder: RunDir, problem: Any, recipe: Any) -> None:
        from diffem.em.split import split

        self.folder, self.recipe = folder, recipe
        index, _ = split(len(problem.obs), recipe.watch.held_out)
        self.count = len(index)
        self.obs, self.truth = problem.obs[index], problem.reference[index]
        # saved beside the run, so that an interrupted benchmark can resume
        self.file = folder.path / "errors.json"
        kept = read_json(self.file) if self.file.is_file() else {}
        self.errors: dict[int, dict[str, float]] = {int(k): {"mse_deleted": v[0]} for k, v in kept.items()}
        self.seconds: dict[int, float] = {int(k): v[1] for k, v in kept.items()}

    def __call__(self, event: str, data: dict[str, Any]) -> None:
        if event == "lap":
            print({k: round(v, 4) if isinstance(v, float) else v for k, v in data.items()}, flush=True)
        if event == "expectation":
            began = time.monotonic()
            lap = data["lap"]
            files = sorted((self.folder.lap(lap) / "draws").glob("*.npy"))
            draws = torch.from_numpy(np.concatenate([np.load(f)[0] for f in files]))[:5000]
            error = mse_unmeasured(draws, self.truth[:5000], self.obs[: min(5000, self.count)])
            self.errors[lap] = {"mse_deleted": error}
            print(f"lap {lap}: error of the draws on deleted pixels {error:.4f}", data, flush=True)
            self.seconds[lap] = time.monotonic() - began
            write_json(self.file, {k: (self.errors[k]["mse_deleted"], self.seconds[k]) for k in self.errors})


if __name__ == "__main__":
    main()
