"""Instruments that are not known exactly: `python -m benchmarks.calibration [--only CASE ...]`.

On the 1,797 digits of 8×8 pixels with noise of 0.1:

- `gain`: four groups of half-masked observations with gains 1, 0.7, 1.3, 1.6 and offsets 0, 0.3, −0.5, 0.8
  (`priors.calibrate`).
- `width-1.3`, `width-0.7`: Gaussian blurs of width θ·s with four known factors s from 0.5 to 1.4. The true θ is 1, the
  initial value 1.3 or 0.7 (`Function(..., learn=...)`, the recipe `digits` with two laps of shorter training).
- `width-given`: the same run with the true θ, for the error of its draws.
- `groups`: a width per group of observations, true values 0.8, 1 and 1.2, initial value 1.3; the estimate at the start.
- `shift`: frames displaced by multiples 0, 1, 2 of an unknown vector (0.6, −0.4) pixels, initial value 0, half of the
  pixels missing; the estimate at the start.
- `phase`: half of k-space of images with a phase of 0, 1 or 2 times an unknown (0.5 radians, and 0.1 radians per
  column), initial values 20 % off; the estimate at the start.
- `one-width`: one blur for all observations, which do not determine its width.

`--seeds` repeats the estimates at the start for several seeds. The cases of a run are measured for the first seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import diffem
from diffem import Observations, operators, priors
from diffem.datasets.digits import images
from diffem.em.evaluation import posterior_draws
from diffem.em.screening import largest_plausible
from diffem.priors.parameter_scoring import score_parameters
from diffem.runs.rundir import RunDir

from .record import RESULTS, merge, record

SIGMA, DRAWS = 0.1, 4
GAIN, OFFSET = (1.0, 0.7, 1.3, 1.6), (0.0, 0.3, -0.5, 0.8)
FACTORS = (0.5, 0.8, 1.1, 1.4)
SHORTER = {"laps": 2, "train.first_steps": 4000, "train.steps": 2000, "e_step.draws": 1}


def blurred(x: Tensor, factor: Tensor, width: Tensor) -> Tensor:
    """Circular Gaussian blur of width `width·factor`; factor `(n,)`."""
    size = x.shape[-1]
    distance = torch.arange(size, device=x.device, dtype=x.dtype)
    distance = torch.minimum(distance, size - distance)
    kernel = torch.exp(-0.5 * (distance / (width * factor)[:, None]) ** 2)
    transfer = torch.fft.fft(kernel / kernel.sum(1, keepdim=True))
    return torch.fft.ifft2(torch.fft.fft2(x) * transfer[:, :, None] * transfer[:, None, :]).real


def displaced(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """x displaced by `factor·shift` pixels, periodically; factor `(n,)`, shift `(2,)`."""
    frequency = torch.fft.fftfreq(x.shape[-1], device=x.device).to(x.dtype)
    rows, columns = (-2 * math.pi * factor[:, None] * shift[k] * frequency for k in (0, 1))
    angle = rows[:, :, None] + columns[:, None, :]
    return torch.fft.ifft2(torch.fft.fft2(x) * torch.polar(torch.ones_like(angle), angle)).real


def coil(x: Tensor, factor: Tensor, phase: Tensor) -> Tensor:
    """Centred k-space of x with a phase `factor·(phase[0] + phase[1]·column)` in the image; last axis (re, im)."""
    column = torch.arange(x.shape[-1], device=x.device, dtype=x.dtype)
    angle = (factor[:, None] * (phase[0] + phase[1] * column))[:, None, :].expand_as(x)
    k = torch.fft.fftshift(torch.fft.fft2(torch.complex(x * angle.cos(), x * angle.sin()), norm="ortho"), (-2, -1))
    return torch.view_as_real(k)


def noisy(A: operators.Operator, x: Tensor, generator: torch.Generator) -> Tensor:
    y = A(x)
    return y + SIGMA * torch.randn(y.shape, generator=generator)


def choices(values: tuple[float, ...], n: int, generator: torch.Generator) -> Tensor:
    return torch.tensor(values)[torch.randint(len(values), (n,), generator=generator)]


def widths(first: float | None, seed: int, factors: tuple[float, ...] = FACTORS) -> tuple[Observations, Tensor]:
    """Blurred digits whose width is to be learned from `first`, or known to be 1; and the truth."""
    generator, x = torch.Generator().manual_seed(seed), images()
    factor = choices(factors, len(x), generator)
    y = noisy(operators.Function(blurred, (8, 8), factor=factor, width=1.0), x, generator)
    known = operators.Function(blurred, (8, 8), factor=factor, width=1.0)
    A = known if first is None else operators.Function(blurred, (8, 8), factor=factor, learn={"width": first})
    return Observations(y, A, sigma=SIGMA), x


def estimated(case: str, obs: Observations, truth: tuple[float, ...], seed: int) -> dict[str, Any]:
    """The estimate at the start."""
    parameters, score = score_parameters(obs, progress=False)
    (name, found), *_ = parameters.estimates.items()
    row = {"case": case, "seed": seed, "parameter": name, "truth": list(truth), "estimate": list(found.value)}
    row |= {"standard_error": list(found.error), "determined": parameters.is_determined}
    left = score.information.diagonal() / score.full.diagonal()
    return row | {"information_left": float(left.min())}


def run_width(first: float | None, seed: int, folder: Path) -> dict[str, Any]:
    """A run: the path of the width, and the mean squared error of its posterior draws."""
    obs, x = widths(first, seed)
    name = "given" if first is None else f"{first:g}"
    run = diffem.fit(obs, "digits", folder / f"width-{name}", seed, changes=SHORTER, progress=False, report=False)
    recipe, bound = RunDir(run.path).recipe(), largest_plausible(run.load(0), None)
    drawn = posterior_draws(run.prior, obs, recipe, DRAWS, bound)
    row = {"case": f"width-{name}", "seed": seed, "mse_draw": float((drawn - x).square().mean())}
    row |= {"mse_mean": float((drawn.mean(0) - x).square().mean()), "seconds": sum(lap["seconds"] for lap in run.laps)}
    if first is None:
        return row
    path = [lap["operator_parameters"]["width"] for lap in run.laps]
    errors = [lap["operator_errors"]["width"] for lap in run.laps]
    return row | {"first": first, "truth": 1.0, "path": path, "standard_errors": errors, "error": path[-1] - 1}


def gain(seed: int) -> dict[str, Any]:
    generator, x = torch.Generator().manual_seed(seed), images()
    labels = torch.arange(len(x)) % len(GAIN)
    mask = torch.rand(x.shape, generator=generator) < 0.5
    g, b = (torch.tensor(values)[labels][:, None, None] for values in (GAIN, OFFSET))
    y = g * x + b + SIGMA * torch.randn(x.shape, generator=generator)
    obs = Observations(torch.where(mask, y, 0), operators.Mask(mask), sigma=SIGMA)
    found = priors.calibrate(obs, labels, seed=seed)
    size = float(obs.y[mask].square().mean().sqrt())
    worst = [float((found.gain / torch.tensor(GAIN) - 1).abs().max())]
    worst.append(float((found.offset - torch.tensor(OFFSET)).abs().max()) / size)
    row: dict[str, Any] = {"case": "gain", "seed": seed, "gain": found.gain.tolist(), "offset": found.offset.tolist()}
    row |= {"true_gain": list(GAIN), "true_offset": list(OFFSET), "gain_error": worst[0], "offset_error": worst[1]}
    return row | {"size_of_y": size}


def groups(seed: int) -> dict[str, Any]:
    generator, x, truth = torch.Generator().manual_seed(seed), images(), (0.8, 1.0, 1.2)
    factor, label = choices(FACTORS, len(x), generator), torch.arange(len(x)) % 3
    y = noisy(operators.Function(blurred, (8, 8), factor=factor * torch.tensor(truth)[label], width=1.0), x, generator)
    A = operators.Function(blurred, (8, 8), factor=factor, learn={"width": 1.3}, groups=label)
    return estimated("groups", Observations(y, A, sigma=SIGMA), truth, seed)


def shift(seed: int) -> dict[str, Any]:
    generator, x, truth = torch.Generator().manual_seed(seed), images(), (0.6, -0.4)
    factor = choices((0.0, 1.0, 2.0), len(x), generator)
    # four masks, so that few operators differ
    mask = operators.Mask((torch.rand(4, 8, 8, generator=generator) < 0.5)[torch.arange(len(x)) % 4])
    true = operators.Function(lambda x, factor: displaced(x, factor, torch.tensor(truth).to(x)), (8, 8), factor=factor)
    A = mask @ operators.Function(displaced, (8, 8), factor=factor, learn={"shift": [0.0, 0.0]})
    return estimated("shift", Observations(noisy(mask @ true, x, generator), A, sigma=SIGMA), truth, seed)


def phase(seed: int) -> dict[str, Any]:
    generator, x, truth = torch.Generator().manual_seed(seed), images(), (0.5, 0.1)
    factor = choices((0.0, 1.0, 2.0), len(x), generator)
    lines = (torch.rand(4, 1, 8, 1, generator=generator) < 0.5).expand(4, 8, 8, 2)[torch.arange(len(x)) % 4]
    mask = operators.Mask(lines.contiguous())
    true = operators.Function(lambda x, factor: coil(x, factor, torch.tensor(truth).to(x)), (8, 8), factor=factor)
    A = mask @ operators.Function(coil, (8, 8), factor=factor, learn={"phase": [0.4, 0.08]})
    return estimated("phase", Observations(noisy(mask @ true, x, generator), A, sigma=SIGMA), truth, seed)


def starts(first: float) -> Callable[[int], dict[str, Any]]:
    return lambda seed: estimated(f"start-{first:g}", widths(first, seed)[0], (1.0,), seed) | {"first": first}


ESTIMATES: dict[str, Callable[[int], dict[str, Any]]] = {
    "gain": gain,
    "start-1.3": starts(1.3),
    "start-0.7": starts(0.7),
    "groups": groups,
    "shift": shift,
    "phase": phase,
    "one-width": lambda seed: estimated("one-width", widths(1.3, seed, (1.0,))[0], (1.0,), seed),
}
RUNS: dict[str, float | None] = {"width-1.3": 1.3, "width-0.7": 0.7, "width-given": None}


def figures(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The worst errors over the seeds, and those of the runs."""
    found: dict[str, float] = {}

    def worst(key: str, value: float) -> None:
        found[key] = max(found.get(key, 0.0), abs(value))

    for row in rows:
        case = row["case"]
        if case == "gain":
            worst("gain_error", row["gain_error"])
            worst("offset_error", row["offset_error"])
        elif case == "one-width":
            found["cannot_tell"] = found.get("cannot_tell", 0.0) + (not row["determined"])
        elif "estimate" in row:
            largest = max(map(abs, row["truth"]))
            pairs = zip(row["estimate"], row["truth"], strict=True)
            worst(f"{case.replace('-', '_')}_error", max(abs(a - b) for a, b in pairs) / largest)
        elif "error" in row:
            worst("width_error", row["error"])
    draws = {row["case"]: row["mse_draw"] for row in rows if "mse_draw" in row}
    if "width-given" in draws and len(draws) > 1:
        learned = max(value for case, value in draws.items() if case != "width-given")
        found["draw_excess"] = learned / draws["width-given"] - 1
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=[*ESTIMATES, *RUNS], nargs="+", default=[*ESTIMATES, *RUNS])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--name", default="calibration")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark-calibration"))
    parser.add_argument("--merge", type=Path, help="join the results of parts in this folder, and measure nothing")
    arguments = parser.parse_args()
    if arguments.merge is not None:
        print(merge("calibration", sorted(arguments.merge.glob("calibration-*.json")), figures))
        return
    rows: list[dict[str, Any]] = []
    for case in arguments.only:
        for seed in arguments.seeds if case in ESTIMATES else arguments.seeds[:1]:
            rows.append(ESTIMATES[case](seed) if case in ESTIMATES else run_width(RUNS[case], seed, arguments.out))
            print(rows[-1], flush=True)
            record(arguments.name, figures(rows), rows, arguments.results)


if __name__ == "__main__":
    main()
