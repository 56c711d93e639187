"""Make the figures of the documentation with diffem: `python docs/figures/make.py` (twelve minutes on one core).

The data are points on a curve in the plane. Every observation measures its point precisely in one direction and poorly
in the other. The problem is small enough to show everything in one figure.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import Tensor

import diffem
from diffem import Observations, linalg, operators, priors
from diffem.core.randomness import Stream
from diffem.observations.information import information_of
from diffem.posterior import Pivot

HERE = Path(__file__).parent
INK, ACCENT, MUTED = "#1b3a4b", "#c8553d", "#8d99ae"
SHARP, BLUNT = 0.05, 0.8

RECIPE: dict[str, Any] = {
    "name": "clover",
    "data": {"source": "given"},
    "laps": 24,
    "sigma_min": 0.01,
    "sigma_max": 20.0,
    "network": {"kind": "mlp", "hidden": [128, 128, 128], "embedding": 64},
    "e_step": {"steps": 48, "iterations": 2, "shard": 4096},
    "train": {"steps": 1200, "first_steps": 2400, "batch": 512, "lr": 1.0e-3, "final_lr": 1.0e-5, "ema": 0.99},
    "watch": {"held_out": 256, "draws": 8, "samples": 1024},
}


def clover(n: int, seed: int = 0) -> Tensor:
    """Sample points on a curve with three leaves, `(n, 2)`."""
    angle = 2 * math.pi * Stream(seed, "clover").uniform(torch.arange(n), (1,))
    radius = 1.3 + 0.6 * torch.cos(3 * angle)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)


def observe(x: Tensor, seed: int = 0, stated: float = 1.0) -> Observations:
    """Observe each point along two randomly rotated axes, with noise 0.05 along one and 0.8 along the other.

    Args:
        x: `(n, 2)`. The points.
        seed: Seed of the rotations and the noise.
        stated: Ratio of the stated noise level to the true one.
    """
    index = torch.arange(len(x))
    angle = 2 * math.pi * Stream(seed, "direction").uniform(index, (1,))[:, 0]
    A = operators.Dense(torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], 1).reshape(-1, 2, 2))
    noise = torch.tensor([SHARP, BLUNT])
    y = A(x) + noise * Stream(seed, "noise").normal(index, (2,))
    return Observations(y, A, cov=linalg.Diagonal((stated * noise) ** 2))


def panels(count: int, titles: list[str], size: float = 2.1, rows: int = 1) -> tuple[Figure, Any]:
    columns = count // rows
    figure = Figure(figsize=(size * columns, size * rows + 0.25), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xlim=(-2.6, 2.6), ylim=(-2.6, 2.6), xticks=[], yticks=[], aspect="equal")
        axis.set_title(title, fontsize=9, color="#333333")
    return figure, axes


def save(figure: Figure, name: str) -> None:
    from PIL import Image

    path = HERE / f"{name}.png"
    figure.savefig(path, facecolor="white")
    # 64 colours are enough for points and lines, and reduce the file to a third
    Image.open(path).convert("RGB").quantize(64).save(path, optimize=True)
    print(path.name, path.stat().st_size >> 10, "KiB", flush=True)


def dots(axis: Any, x: Tensor, colour: str = INK, alpha: float = 0.35, size: float = 1.5) -> None:
    axis.scatter(x[:, 0], x[:, 1], s=size, color=colour, alpha=alpha, linewidths=0)


def laps(folder: Path) -> None:
    """Show the unknown points, the observations, and prior samples of several laps."""
    x = clover(4096)
    run = diffem.fit(observe(x), RECIPE, folder / "clover", progress=False)
    shown = [0, 2, 4, 8, 16, 24]
    titles = ["x, never seen", "each y: a segment", *("Gaussian start" if k == 0 else f"lap {k}" for k in shown)]
    figure, axes = panels(8, titles, rows=2)
    dots(axes[0], x[:1500], MUTED)
    obs = observe(x)
    for i in range(40):
        point, across = obs.A.adjoint(obs.y)[i], obs.A._tensors["matrix"][i, 1]
        ends = torch.stack([point - BLUNT * across, point + BLUNT * across])
        axes[1].plot(ends[:, 0], ends[:, 1], color=ACCENT, linewidth=0.8, alpha=0.8)
    for axis, k in zip(axes[2:], shown, strict=True):
        dots(axis, diffem.load(run.path, lap=k).sample(1500, steps=64, seed=1))
    save(figure, "laps")


def mixture() -> priors.MixturePrior:
    """The curve as a Gaussian mixture, whose denoiser is known in closed form."""
    means = clover(256, seed=3)
    return priors.MixturePrior(torch.full((256,), 1 / 256), means, torch.full((256,), 0.05))


def denoising() -> None:
    """Show the mean and the covariance of x given x_t at three noise levels."""
    prior, x_t = mixture(), torch.tensor([[0.9, 1.0]])
    levels = [0.1, 0.4, 1.5]
    figure, axes = panels(3, [f"σ = {s:g}" for s in levels], size=2.6)
    for axis, sigma in zip(axes, levels, strict=True):
        dots(axis, prior.means, MUTED, 0.8, 3)
        x_hat = prior(x_t, sigma)[0]
        jacobian = torch.autograd.functional.jacobian(lambda u: prior(u[None], sigma)[0], x_t[0])  # noqa: B023
        covariance = sigma**2 * (jacobian + jacobian.T) / 2
        values, vectors = torch.linalg.eigh(covariance)
        circle = torch.linspace(0, 2 * math.pi, 100)
        ellipse = x_hat + torch.stack([circle.cos(), circle.sin()], 1) * values.clamp(min=0).sqrt() @ vectors.T
        axis.plot(ellipse[:, 0], ellipse[:, 1], color=ACCENT, linewidth=1.4)
        axis.plot(*x_t[0], "x", color=INK, markersize=7)
        axis.plot(*x_hat, "o", color=ACCENT, markersize=5)
        axis.annotate("", x_hat.tolist(), x_t[0].tolist(), arrowprops={"arrowstyle": "->", "color": INK, "lw": 0.8})
    save(figure, "denoising")


def pivot() -> None:
    """Show the pivot, which combines x_t and y, at three noise levels, and the exact E[x | x_t, y]."""
    prior, x_t, noise = mixture(), torch.tensor([[1.5, 1.2]]), 0.15
    obs = Observations(torch.tensor([[0.4]]), operators.Dense(torch.tensor([[1.0, 0.0]])), sigma=noise)
    levels = [0.15, 0.5, 1.5]
    figure, axes = panels(3, [f"σ = {s:g}" for s in levels], size=2.6)
    circle = torch.linspace(0, 2 * math.pi, 100)
    unit = torch.stack([circle.cos(), circle.sin()], 1)
    for axis, sigma in zip(axes, levels, strict=True):
        dots(axis, prior.means, MUTED, 0.8, 3)
        axis.axvspan(0.4 - noise, 0.4 + noise, color=MUTED, alpha=0.25, linewidth=0)
        around = x_t + sigma * unit
        axis.plot(around[:, 0], around[:, 1], color=INK, linewidth=0.9)
        axis.plot(*x_t[0], "x", color=INK, markersize=7)
        level = torch.tensor(sigma)
        information = information_of(obs)
        assert information is not None
        m = Pivot(obs, information).centre(x_t, level)
        spread = torch.tensor([(sigma**-2 + noise**-2) ** -0.5, sigma])  # the roots of C's eigenvalues
        ellipse = m + spread * unit
        axis.plot(ellipse[:, 0], ellipse[:, 1], color=ACCENT, linewidth=1.4)
        axis.plot(*m[0], "+", color=ACCENT, markersize=8)
        axis.plot(*prior.posterior(obs, method="exact")(x_t, sigma)[0], "o", color=ACCENT, markersize=5)
    save(figure, "pivot")


def methods() -> None:
    """Show posterior draws by several estimates of E[x | x_t, y]. For a mixture the exact estimate is known."""
    prior = mixture()
    A = operators.Dense(torch.tensor([[1.0, 0.0]]))
    obs = Observations(torch.full((1500, 1), 0.4), A, sigma=0.1)
    names = {
        "exact": "exact",
        "mmps": "moment matching",
        "sigma_x": "Σ_x in place of V[x | x_t]",
        "sigma_t": "σ² I in place of V[x | x_t]",
    }
    figure, axes = panels(4, list(names.values()), size=2.3)
    for axis, name in zip(axes, names, strict=True):
        options: dict[str, Any] = {"iterations": 2} if name != "exact" else {}
        if name == "sigma_x":
            mean, cov = prior.means.mean(0), prior.means.T.cov() + 0.05**2 * torch.eye(2)
            prior._cov = priors.GaussianPrior(mean, cov).covariance()
        dots(axis, prior.means, MUTED, 0.6, 2)
        axis.axvline(0.4, color=MUTED, linewidth=0.8)
        dots(axis, prior.posterior(obs, method=name, **options).sample(steps=128, seed=0), ACCENT)
    save(figure, "methods")


def trouble(folder: Path) -> None:
    """Show a correct run and three runs with a mistake. The measures of all runs are written to trouble.json."""
    x = clover(2048)
    cases: dict[str, tuple[Observations, dict[str, Any]]] = {
        "as it should be": (observe(x), {}),
        "noise stated 5× too small": (observe(x, stated=0.2), {}),
        "noise stated 3× too large": (observe(x, stated=3.0), {}),
        "60 training steps per lap": (observe(x), {"train.steps": 60, "train.first_steps": 60}),
    }
    figure, axes = panels(4, list(cases), size=2.3)
    table = {}
    for axis, (name, (obs, changes)) in zip(axes, cases.items(), strict=True):
        run = diffem.fit(obs, RECIPE, folder / name.replace(" ", "-"), changes={"laps": 12, **changes}, progress=False)
        dots(axis, run.prior.sample(1500, steps=64, seed=1))
        last = run.laps[-1]
        table[name] = {
            k: last[k]
            for k in ("heldout_chi2", "predictive_log_likelihood", "observation_distance", "rejected", "guards")
        }
        table[name]["warnings"] = len([w for m in run.laps for w in m["warnings"]])
    save(figure, "trouble")
    (HERE / "trouble.json").write_text(json.dumps(table, indent=1) + "\n")


def minutes() -> None:
    """CIFAR-10 with three pixels in four deleted: error of the draws and FID against GPU minutes, for three recipes."""
    results = HERE.parent.parent / "benchmarks" / "results"
    rows = {
        name: [row for row in json.loads((results / f"{name}.json").read_text())["rows"] if row["lap"]]
        for name in ("cifar10-rho75", "cifar10-conditional", "cifar10-fast", "cifar10-on")
    }
    curves = {
        "cifar10-table1": (rows["cifar10-rho75"], "tab:blue"),
        "conditional": (rows["cifar10-conditional"], ACCENT),
        "mmps": (rows["cifar10-fast"] + rows["cifar10-on"], INK),
    }
    figure = Figure(figsize=(7.4, 2.9), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    error, quality = figure.subplots(1, 2)
    for name, (laps_of, colour) in curves.items():
        errors = [(row["gpu_minutes"], row["mse_deleted"]) for row in laps_of if "mse_deleted" in row]
        error.plot(*zip(*errors, strict=True), ".-", markersize=4, color=colour, label=name)
        for key, marker, what in (("fid", "o", "prior samples"), ("fid_draws", "s", "draws")):
            measured = [(row["gpu_minutes"], row[key]) for row in laps_of if key in row]
            if measured:
                quality.plot(*zip(*measured, strict=True), marker, color=colour, label=f"{what}, {name}")
            offset = (0, -12) if (name, key) == ("cifar10-table1", "fid_draws") else (0, 6)
            for x, y in measured:
                quality.annotate(f"{y:.1f}", (x, y), offset, textcoords="offset points", ha="center", fontsize=8)
    error.set(xlabel="GPU minutes", ylabel="error on deleted pixels", ylim=(0.1, 0.23))
    quality.set(xlabel="GPU minutes", ylabel="FID, 50,000 images", xlim=(0, 70), ylim=(-5, 100))
    error.set_xlim(0, None)
    for axis in (error, quality):
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8, loc="upper right")
    save(figure, "minutes")


def main(wanted: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        everything = {
            "denoising": denoising,
            "pivot": pivot,
            "methods": methods,
            "minutes": minutes,
            "laps": lambda: laps(Path(folder)),
            "trouble": lambda: trouble(Path(folder)),
        }
        for name in wanted or list(everything):
            everything[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
