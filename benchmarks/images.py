"""The paper's Appendix E on CIFAR-10 test images: `python -m benchmarks.images --prior RUN [--steps 10 100] [--quick]`.

There are four inverse problems, scaled from 256×256 to 32×32: a missing box of 16×16, nine tenths of the pixels
missing, motion blur with a kernel of 9×9, and ×4 bicubic super-resolution. The prior is a run of the recipe
`cifar10-clean`, which was not trained on these images. All methods use the same sampler (DDPM, as published), steps and
random numbers, with several draws per image. The measures are LPIPS, PSNR and SSIM of single draws (clamped to the
range of pixels), and three that the paper does not report: residual χ², coverage of 90 % intervals, and CRPS. Rows
contain means over images with standard errors.

`--assets` is a folder with `cifar10/` and `lpips/alexnet.ckpt`; default: the environment variable DIFFEM_ASSETS.
`--quick` is a short test. Results are written after every problem. `--keep` keeps the rows of an earlier result that
are not measured now.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffem
from diffem import Observations, operators
from diffem.core.randomness import Stream
from diffem.datasets import cifar10
from diffem.em.run import Run
from diffem.metrics import LPIPS, crps, load_lpips, psnr
from diffem.metrics.calibration import predictive_coverage
from diffem.metrics.images import ssim
from diffem.priors import DiffusionPrior

from .record import RESULTS, ROOT, earlier, record

WIDTH = 2.0  # the paper's noise levels are for pixels in [−1, 1], ours are in [−2, 2]
SIZE, BOX, MISSING, KERNEL, FACTOR = 32, 16, 0.9, 9, 4
NAMES = ("dps", "pigdm", "tmpd", "diffpir", "mmps1", "mmps3", "mmps5")
SAMPLER, SHOWN, MAIN = "ddpm", 2, 100  # images in the figure per problem; number of steps that the figure shows
BATCH, FAILED = 1024, 100.0  # draws at a time; a draw with larger values counts as failed


def box(index: Tensor, seed: int) -> operators.Operator:
    """Everything except a square of 16×16 at a random position is measured."""
    corner = (Stream(seed, "images box").uniform(index, (2,)) * (SIZE - BOX + 1)).long()
    place = torch.arange(SIZE)
    rows, columns = ((place >= c) & (place < c + BOX) for c in (corner[:, :1], corner[:, 1:]))
    return operators.Mask(~(rows[:, None, :, None] & columns[:, None, None, :]))


def random(index: Tensor, seed: int) -> operators.Operator:
    """One pixel in ten is measured, in all channels."""
    return operators.Mask(Stream(seed, "images random").uniform(index, (1, SIZE, SIZE)) >= MISSING)


def motion(index: Tensor, seed: int) -> operators.Operator:
    return operators.Blur(motion_kernels(index, seed), boundary="reflect")


def super_resolution(index: Tensor, seed: int) -> operators.Operator:
    return operators.Downsample(FACTOR, mode="bicubic")


def motion_kernels(index: Tensor, seed: int, points: int = 128) -> Tensor:
    """Motion kernels `(n, 9, 9)`: the time a point of constant speed and varying direction spends at each pixel."""
    stream = Stream(seed, "images motion")
    turn, start = stream.normal(index, (points,)), stream.uniform(index, (2,), step=1)
    heading = 2 * math.pi * start[:, :1] + 0.15 * turn.cumsum(1)
    path = torch.stack([heading.cos(), heading.sin()], -1).cumsum(1)
    low, high = path.amin(1, keepdim=True), path.amax(1, keepdim=True)
    reach = (KERNEL - 1) * (0.5 + 0.5 * start[:, 1:, None])  # pixels along the longer side
    path = (path - (low + high) / 2) * reach / (high - low).amax(2, keepdim=True) + (KERNEL - 1) / 2
    # every point is distributed over the four pixels around it
    grid = torch.arange(KERNEL, dtype=path.dtype)
    rows, columns = ((1 - (path[..., k, None] - grid).abs()).clamp(min=0) for k in (0, 1))
    return torch.einsum("nph,npw->nhw", rows, columns) / points


# name → (noise level in the paper, function that makes operators from image addresses)
TASKS: dict[str, tuple[float, Callable[[Tensor, int], operators.Operator]]] = {
    "box": (1.0, box),
    "random": (0.01, random),
    "motion": (0.1, motion),
    "super-resolution": (0.1, super_resolution),
}


def methods(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Options of every method: the published settings unless the command changes them, the same for all problems."""
    all_of_them: dict[str, dict[str, Any]] = {
        "dps": {"method": "dps", "zeta": arguments.zeta},
        "pigdm": {"method": "pigdm"},
        "tmpd": {"method": "tmpd"},
        "diffpir": {"method": "diffpir", "lam": arguments.lam},
    }
    for k in (1, 3, 5):
        all_of_them[f"mmps{k}"] = {"method": "mmps", "solver": arguments.solver, "iterations": k}
    return {name: all_of_them[name] for name in arguments.only or NAMES}


def problem(task: str, truth: Tensor, seed: int) -> Observations:
    """Noisy observations of images `(n, 3, 32, 32)`; mask, kernel and noise of image i depend on (seed, task, i)."""
    level, make = TASKS[task]
    index, sigma = torch.arange(len(truth)), WIDTH * level
    A = make(index, seed)
    y = A(truth)
    return Observations(
        y + sigma * Stream(seed, f"images {task} noise").normal(index, tuple(y.shape[1:])), A, sigma=sigma
    )


def measures(x: Tensor, truth: Tensor, obs: Observations, lpips: LPIPS) -> dict[str, Tensor]:
    """Measures per image, `(n,)`; those of single draws are averaged over the draws. x: `(draws, n, 3, 32, 32)`."""
    failed = ~(x.abs() <= FAILED).flatten(2).all(2)  # true for NaN too
    x = torch.where(failed[..., None, None, None], 0, x)  # failed draws become grey and are counted
    low, high = cifar10.RANGE
    shown, span = x.clamp(low, high), high - low

    def of_draws(measure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        return torch.stack([measure(draw, truth) for draw in shown]).mean(0)

    def perceived(v: Tensor, t: Tensor, times: int) -> Tensor:
        # float64, because a GPU rounds float32 convolutions to ten bits
        a, b = (w.double().repeat_interleave(times, -1).repeat_interleave(times, -2) for w in (v, t))
        return lpips(a, b, cifar10.RANGE)

    return {
        "lpips": of_draws(lambda v, t: perceived(v, t, 1)),
        # enlarged to the size of the patches LPIPS was trained on
        "lpips_64": of_draws(lambda v, t: perceived(v, t, 2)),
        "psnr": of_draws(lambda v, t: psnr(v, t, span)),
        "psnr_mean": psnr(x.mean(0).clamp(low, high), truth, span),
        "ssim": of_draws(lambda v, t: ssim(v, t, span)),
        "chi2": torch.stack([obs.chi2(draw) for draw in x]).mean(0),
        "coverage90": predictive_coverage(x, truth, 0.9),
        "crps": crps(x, truth),
        "failed": failed.double().mean(0),
    }


@dataclass
class Bench:
    """The prior and the images on the device; `row` measures one method on one problem."""

    prior: DiffusionPrior
    truth: Tensor
    lpips: LPIPS
    arguments: argparse.Namespace

    def draw(self, obs: Observations, options: dict[str, Any], steps: int) -> tuple[Tensor, Any]:
        return self.prior.posterior(obs, **options).sample(
            draws=self.arguments.draws,
            steps=steps,
            sampler=SAMPLER,
            seed=self.arguments.seed,
            batch_size=self.arguments.batch,
            return_stats=True,
            progress=False,
        )

    def row(self, task: str, obs: Observations, name: str, steps: int) -> tuple[dict[str, Any], Tensor]:
        options, device = methods(self.arguments)[name], self.truth.device
        began = time.monotonic()
        x, statistics = self.draw(obs, options, steps)
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds = time.monotonic() - began
        row: dict[str, Any] = {"task": task, "sigma_y": WIDTH * TASKS[task][0], "method": name, "steps": steps}
        row |= {"options": options, "sampler": SAMPLER, "images": len(self.truth), "draws": len(x)}
        row |= {"precision": self.arguments.precision if device.type == "cuda" else "float32"}
        for key, values in measures(x, self.truth, obs, self.lpips).items():
            row |= {key: float(values.mean()), f"{key}_se": float(values.double().std() / math.sqrt(len(values)))}
        row |= {"vjps": float(statistics.vjps.double().mean()), "guards": float(statistics.guards.double().mean())}
        row["seconds"] = seconds
        return row, x


def first_or_tied(rows: list[dict[str, Any]], key: str = "lpips", name: str = "mmps3") -> dict[str, float]:
    """By number of steps, the number of problems on which a method is within one standard error of the best.

    The comparison is among all methods, and (`_others`) among those that are not MMPS with another number of
    iterations.
    """
    out: dict[str, float] = {}
    for task, steps in dict.fromkeys((row["task"], row["steps"]) for row in rows):
        some = {row["method"]: row for row in rows if (row["task"], row["steps"]) == (task, steps)}
        if name not in some:
            continue
        limit = some[name][key] - some[name][f"{key}_se"]
        others = [row for other, row in some.items() if not other.startswith("mmps")]
        for label, rivals in (("", list(some.values())), ("_others", others)):
            label = f"{name}_first_or_tied{label}_{steps}"
            out[label] = out.get(label, 0) + all(limit <= row[key] for row in rivals)
    return out


def picture(columns: dict[str, dict[str, Tensor]], path: Path) -> None:
    """Plot truth, observation and a draw of every method for a few images per problem.

    Args:
        columns: Task → title → images `(images, 3, H, W)`.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    titles, cell = list(next(iter(columns.values()))), SIZE + 2
    canvas = torch.ones(len(columns) * SHOWN * cell, len(titles) * cell, 3)
    for r, panels in enumerate(columns.values()):
        for c, images in enumerate(panels.values()):
            for k, image in enumerate(images[:SHOWN]):
                times = SIZE // image.shape[-1]
                image = image.repeat_interleave(times, -1).repeat_interleave(times, -2)
                top, left = (r * SHOWN + k) * cell, c * cell
                shown = ((image.movedim(0, -1) + 2) / 4).clamp(0, 1).nan_to_num(0.9)
                canvas[top : top + SIZE, left : left + SIZE] = shown
    height, width = canvas.shape[:2]
    figure = Figure(figsize=(width / 50 + 0.3, height / 50 + 0.3), dpi=100, layout="constrained")
    FigureCanvasAgg(figure)
    axis = figure.subplots()
    axis.imshow(canvas.numpy(), interpolation="nearest")
    axis.set_xticks([(c + 0.5) * cell for c in range(len(titles))], titles, fontsize=7)
    axis.set_yticks(
        [(r + 0.5) * SHOWN * cell for r in range(len(columns))], list(columns), fontsize=7, rotation=90, va="center"
    )
    axis.tick_params(length=0, labeltop=True, labelbottom=False)
    for spine in axis.spines.values():
        spine.set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")


def measurement(obs: Observations) -> Tensor:
    """The measured values as images; NaN marks missing pixels."""
    measured = obs.measured
    return obs.y if measured is None else torch.where(measured, obs.y, torch.nan)


def place(row: dict[str, Any]) -> tuple[int, int, int]:
    return row["steps"], list(TASKS).index(row["task"]), NAMES.index(row["method"])


def write(rows: list[dict[str, Any]], prior: str, folder: Path, name: str = "images") -> Path:
    """Write all rows, sorted by steps, problem and method, and their figures."""
    rows = sorted(rows, key=place)
    keys = ("lpips", "psnr", "ssim", "chi2", "coverage90", "crps")
    figures = {f"{key}_{row['task']}_{row['method']}_{row['steps']}": row[key] for row in rows for key in keys}
    figures |= first_or_tied(rows)
    if Path(prior).is_dir():
        laps = Run(Path(prior)).laps
        figures |= {"prior_gpu_minutes": sum(lap["seconds"] for lap in laps) / 60, "prior_steps": laps[-1]["steps"]}
    return record(name, figures, rows, folder)


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="4 images, 2 draws, 10 steps: a quarter of an hour on a CPU"
    )
    parser.add_argument("--prior", default="runs/cifar10-clean", help="a run's folder, or a prior's file")
    parser.add_argument("--assets", type=Path, default=Path(os.environ.get("DIFFEM_ASSETS", "assets")))
    parser.add_argument("--images", type=int, default=100)
    parser.add_argument("--draws", type=int, default=8, help="per image; at least 2")
    parser.add_argument("--steps", type=int, nargs="+", default=[10, MAIN])
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--only", nargs="+", choices=NAMES, help="these methods alone")
    parser.add_argument("--zeta", type=float, default=WIDTH * 0.5, help="ζ' of DPS, which is in units of x")
    parser.add_argument("--lam", type=float, default=8.0, help="of DiffPIR")
    parser.add_argument("--solver", default="cg", help="of MMPS")
    parser.add_argument(
        "--precision", default="bf16", choices=["float32", "tf32", "bf16"], help="precision of the network on a GPU"
    )
    parser.add_argument("--batch", type=int, help="draws at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--name", default="images", help="of the result")
    parser.add_argument("--picture", type=Path, default=ROOT / "docs" / "pictures" / "images.png")
    parser.add_argument("--keep", action="store_true", help="keep the last result's rows that are not measured now")
    arguments = parser.parse_args(words)
    if arguments.quick:
        arguments.images, arguments.draws, arguments.steps = 4, 2, [10]
    truth = cifar10.from_uint8(cifar10.images(arguments.assets / "cifar10", "test")[: arguments.images])
    arguments.batch = arguments.batch or min(BATCH, len(truth) * arguments.draws)
    prior = diffem.load(arguments.prior, device=arguments.device)
    assert isinstance(prior, DiffusionPrior), f"{arguments.prior} holds no trained network"
    lpips = load_lpips(arguments.assets / "lpips" / "alexnet.ckpt", arguments.device)
    bench = Bench(prior, truth.to(arguments.device), lpips, arguments)
    problems = {task: problem(task, truth, arguments.seed).to(arguments.device) for task in arguments.tasks}
    if torch.device(arguments.device).type == "cuda":
        prior.accelerate(arguments.batch, precision=arguments.precision)
        began = time.monotonic()
        for obs in problems.values():  # compile before anything is timed
            for options in methods(arguments).values():
                bench.draw(obs, options, 1)
        torch.cuda.synchronize()
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    shown = MAIN if MAIN in arguments.steps else arguments.steps[-1]
    rows: list[dict[str, Any]] = []
    columns: dict[str, dict[str, Tensor]] = {}
    before = earlier(arguments.name, arguments.results) if arguments.keep else []
    for steps in arguments.steps:
        for task, obs in problems.items():
            panels = {"truth": truth[:SHOWN], "measured": measurement(obs)[:SHOWN].cpu()}
            for name in methods(arguments):
                row, x = bench.row(task, obs, name, steps)
                rows.append(row)
                panels[name] = x[0, :SHOWN].cpu()
                text = "  ".join(f"{key} {row[key]:.3f} ± {row[f'{key}_se']:.3f}" for key in ("lpips", "psnr", "ssim"))
                rest = "  ".join(f"{key} {row[key]:.3g}" for key in ("chi2", "coverage90", "crps", "failed"))
                print(f"{steps:5} {task:17} {name:8} {text}  {rest}  ({row['seconds']:.1f} s)", flush=True)
            done = {place(row) for row in rows}
            old = [row for row in before if place(row) not in done]
            path = write([*old, *rows], arguments.prior, arguments.results, arguments.name)
            if steps == shown:
                columns[task] = panels
                picture(columns, arguments.picture)
    print(first_or_tied(rows))
    print(path)


if __name__ == "__main__":
    main()
