"""The report of a run: one HTML page with its pictures inside."""

from __future__ import annotations

import base64
import math
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import __version__
from ..data import Observations
from ..em.fit import load
from ..em.shown import restore_pictures
from ..em.verdict import verdict
from ..em.watch import in_pictures
from ..errors import InputError
from ..priors import Prior
from ..runs.files import write_bytes, write_text
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..runs.shown import read_losses, read_shown
from . import pictures


def write_report(
    path: str | Path,
    obs: Observations | None = None,
    reference: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
) -> Path:
    """Write `report.html` (and the pictures beside their laps) of the run at `path`; returns the page's path.

    obs, reference: the run's observations and the truth behind them, where the caller has them at hand. Samples and draws of a lap that
        are missing or damaged are made again; draws need the observations.
    """
    from jinja2 import Environment

    run = RunDir(path)
    recipe, info, metrics = run.recipe(), run.info(), run.metrics()
    if not metrics:
        raise InputError(f"{path}: no lap of this run is finished yet, there is nothing to report")
    page = Environment(autoescape=True).from_string((files("diffem.report") / "page.html").read_text())
    if obs is not None:
        run.require_observations(obs, "those given to the report")
    index = in_pictures(len(obs), recipe.watch.held_out) if obs is not None else torch.arange(0)
    shown = _shown(obs, index, reference)
    last, laps = metrics[-1]["lap"], [m["lap"] for m in _spread(metrics)]
    _restore(run, recipe, laps, None if obs is None else obs[index], device)
    html = page.render(
        title=recipe.name,
        about=recipe.about,
        version=__version__,
        info=info,
        metrics=metrics,
        last=last,
        hero=_posterior(run, last, last, shown),
        first=_posterior(run, 0, last, shown, rows=4),
        samples=_samples(run, laps),
        curves=_curves(run, metrics),
        columns=COLUMNS,
        show=_show,
        notes=[text for m in metrics for text in m.get("notes", [])],
        verdict=verdict(metrics),
        held_out=recipe.watch.held_out,
        warnings=[(m["lap"], w) for m in metrics for w in m.get("warnings", [])],
        settings=recipe.to_yaml(),
        total=sum(m.get("seconds", 0.0) for m in metrics),
    )
    target = run.path / "report.html"
    write_text(target, html)
    return target


# key, heading, format, what it means
COLUMNS = [
    (
        "chi2",
        "χ²",
        "{:.3f}",
        "residual of the training draws per measured value; about 1 when draws explain their observations",
    ),
    (
        "heldout_chi2",
        "held-out χ²",
        "{:.3f}",
        "the same on observations kept from training: the median, divided by the median of the right model",
    ),
    (
        "predictive_log_likelihood",
        "predictive",
        "{:.3f}",
        "log-likelihood per hidden value of held-out observations; higher is better",
    ),
    (
        "observation_distance",
        "y distance",
        "{:.4f}",
        "sliced distance between real observations and simulated ones; lower is better",
    ),
    ("rejected", "rejected", "{:.2%}", "draws that failed the screening at first"),
    (
        "hidden_coverage90",
        "covered",
        "{:.1%}",
        "hidden values inside 90 % intervals of their predictions; should be 90 %",
    ),
    (
        "hidden_spread",
        "errors / spread",
        "{:.2f}",
        "variance of the errors on hidden values over that of the draws; should be 1, less if draws are too wide",
    ),
    ("kept", "kept", "{:.2%}", "draws taken over from the lap before"),
    ("guards", "guards", "{:.2%}", "curvature guards per evaluation"),
    ("loss", "loss", "{:.4f}", "denoising loss at the end of the lap's training"),
    ("start_seconds", "start [s]", "{:.1f}", "time for the Gaussian start"),
    ("e_seconds", "E [s]", "{:.1f}", "time for posterior draws"),
    ("m_seconds", "M [s]", "{:.1f}", "time for training"),
    ("watch_seconds", "watch [s]", "{:.1f}", "time for the measures of this table"),
]


def _show(value: Any, form: str) -> str:
    return "–" if value is None or (isinstance(value, float) and math.isnan(value)) else form.format(value)


def _spread(metrics: list[dict[str, Any]], most: int = 5) -> list[dict[str, Any]]:
    """A few laps, the first and the last among them."""
    if len(metrics) <= most:
        return metrics
    picks = sorted({round(i * (len(metrics) - 1) / (most - 1)) for i in range(most)})
    return [metrics[i] for i in picks]


def _inline(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _shown(
    obs: Observations | None, index: torch.Tensor, reference: torch.Tensor | None
) -> tuple[np.ndarray, np.ndarray | None] | None:
    """The observations the run's pictures condition on, as Aᵀy with NaN where nothing was measured, and their truth."""
    if obs is None:
        return None
    return obs[index].backprojected().numpy(), None if reference is None else reference[index].numpy()


def _restore(
    run: RunDir, recipe: Recipe, laps: list[int], shown: Observations | None, device: torch.device | str
) -> None:
    def prior(lap: int) -> tuple[Prior, None]:
        return load(run.path, lap, device, "recipe"), None

    for lap in laps:
        restore_pictures(run, lap, recipe, partial(prior, lap), shown)


def _posterior(
    run: RunDir, lap: int, last: int, shown: tuple[np.ndarray, np.ndarray | None] | None, rows: int = 8
) -> str | None:
    draws = read_shown(run, lap, "posterior.npy")
    if shown is None:
        seen, truth = np.full(draws.shape[1:], np.nan), None
    else:
        seen, truth = shown
    if not pictures.is_image(draws[0, 0]):
        return None
    levels = pictures.limits(read_shown(run, last, "posterior.npy"))
    png = pictures.posterior(seen, draws, truth, levels, rows)
    write_bytes(run.file(lap, "posterior.png"), png)
    return _inline(png)


def _samples(run: RunDir, laps: list[int]) -> list[tuple[str, str]]:
    """Captions and pictures of prior samples: one of each lap, or for points one of all laps, which share their axes."""
    samples = {lap: read_shown(run, lap, "samples.npy") for lap in laps}
    last = samples[laps[-1]]
    if not pictures.is_image(last[0]):
        png = pictures.marginals({f"lap {lap}": x for lap, x in samples.items()})
        write_bytes(run.file(laps[-1], "samples.png"), png)
        return [("Neighbouring coordinates", _inline(png))]
    # one scale for all laps, that of the last, or differences between laps would not show
    levels = pictures.limits(last)
    shown = []
    for lap, x in samples.items():
        png = pictures.grid(x[:64], columns=8, levels=levels)
        write_bytes(run.file(lap, "samples.png"), png)
        shown.append((f"Lap {lap}" + (" (Gaussian start)" if lap == 0 else ""), _inline(png)))
    return shown


def _curves(run: RunDir, metrics: list[dict[str, Any]]) -> list[tuple[str, str]]:
    out = []
    series = {}
    for key, title, _, _ in COLUMNS[:5]:
        points = [(float(m["lap"]), float(m[key])) for m in metrics if m.get(key) is not None]
        if len(points) > 1:
            series[title] = ([p[0] for p in points], [p[1] for p in points])
    if series:
        out.append(("Per lap", _inline(pictures.curves(series))))
    losses = read_losses(run, [m["lap"] for m in metrics])
    if losses[0]:
        out.append(("Training loss", _inline(pictures.curves({"denoising loss": losses}, "optimizer step"))))
    return out
