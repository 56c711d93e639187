"""The report of a run: one HTML page with embedded pictures."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import InputError
from ..core.version import __version__
from ..em.lap_evaluation import restore_pictures
from ..em.run import load
from ..em.split import in_pictures
from ..em.verdict import verdict
from ..files.writing import write_bytes, write_text
from ..observations import Observations
from ..operators import Identity, Mask
from ..priors import Prior
from ..priors.base import known_observations
from ..runs.lap_arrays import read_lap_array, read_losses
from ..runs.lap_metrics import METRIC
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from . import pictures
from .measures import columns, lap_curves
from .words import encoding


def write_report(
    path: str | Path,
    obs: Observations | None = None,
    reference: torch.Tensor | None = None,
    device: torch.device | str = "cpu",
    range: tuple[float, float] | None = None,
) -> Path:
    """Write `report.html` of a run, and the pictures into the folders of their laps.

    Samples and draws of a lap that are missing or damaged are recomputed; draws need the observations.

    Args:
        path: The run folder.
        obs: The observations of the run, if available.
        reference: `(n, *event)`. The true x, if known.
        device: Device for samples and draws that are recomputed.
        range: The values of x that are pixel 0 and pixel 255.

    Returns:
        The path of the page.

    Raises:
        InputError: If no lap is finished, or the observations are not those of the run.
    """
    from jinja2 import Environment

    run = RunDir(path)
    recipe, info, metrics = run.recipe(), run.info(), run.metrics()
    if not metrics:
        raise InputError(f"{path}: no lap of this run is finished yet")
    page = Environment(autoescape=True).from_string((files("diffem.report") / "page.html").read_text("utf-8"))
    if obs is not None:
        run.require_observations(obs, "those given to the report")
    index = in_pictures(len(obs), recipe.watch.held_out) if obs is not None else torch.arange(0)
    clean = recipe.e_step.clean
    last, laps = metrics[-1]["lap"], [m["lap"] for m in _spread(metrics)]
    prior = load(path, last)
    data = _picture_data(obs, index, reference, prior)
    _restore(run, recipe, laps, None if obs is None else obs[index], device)
    html = page.render(
        title=run.path.absolute().name if is_own(recipe) else recipe.name,
        version=__version__,
        info=info,
        metrics=metrics,
        last=last,
        images=(images := pictures.is_image(read_lap_array(run, last, "samples.npy")[0])),
        words=_words(recipe, metrics, obs is not None) | {"pictures": _about_pictures(data) if images else ""},
        hero=_posterior(run, last, last, data),
        first=_posterior(run, 0, last, data, rows=4),
        samples=_samples(run, laps, "starting prior" if metrics[0].get("start") == "given" else "Gaussian start"),
        curves=_curves(run, metrics, clean),
        columns=columns(metrics, clean),
        predictive=METRIC["predictive_log_likelihood"],
        notes=[text for m in metrics for text in m.get("notes", [])],
        verdict=verdict(metrics),
        held_out=recipe.watch.held_out,
        warnings=[(m["lap"], w) for m in metrics for w in m.get("warnings", [])],
        settings=recipe.to_yaml(),
        encoding=encoding(obs, prior, range),
        total=sum(m.get("seconds", 0.0) for m in metrics),
    )
    target = run.path / "report.html"
    write_text(target, html)
    return target


def is_own(recipe: Recipe) -> bool:
    """Whether the data are the user's; the title of the page is then the name of the run, not of the recipe."""
    return recipe.data.source in ("given", "file") or ":" in recipe.data.source


def lead(recipe: Recipe) -> str:
    """The line under the title: the description of a built-in recipe, or the recipe and the user's data."""
    if not is_own(recipe):
        return recipe.about
    source = recipe.data.source
    where = {
        "given": "data from Python",
        "file": f"the observations in {recipe.data.options().get('path', 'a file')}",
    }
    return f"Recipe {recipe.name}, on {where.get(source, f'the data of {source}')}"


def _spread(metrics: list[dict[str, Any]], most: int = 5) -> list[dict[str, Any]]:
    """Select at most `most` laps, evenly spread, with the first and the last."""
    if len(metrics) <= most:
        return metrics
    picks = sorted({round(i * (len(metrics) - 1) / (most - 1)) for i in range(most)})
    return [metrics[i] for i in picks]


@dataclass
class PictureData:
    """The observations beside the posterior draws in the pictures of a run.

    Attributes:
        seen: `(n, *event)`. Aᵀy, NaN at unmeasured entries.
        entries: `(n, *event)`. The measured entries of x, NaN elsewhere; None if A does not measure single entries.
        truth: `(n, *event)`. x, if it is known.
    """

    seen: np.ndarray
    entries: np.ndarray | None
    truth: np.ndarray | None


def _picture_data(
    obs: Observations | None, index: torch.Tensor, reference: torch.Tensor | None, prior: Prior
) -> PictureData | None:
    if obs is None:
        return None
    some = known_observations(prior, obs[index])
    truth = None if reference is None else reference[index].numpy()
    seen = some.backprojected().numpy()
    return PictureData(seen, seen if isinstance(some.A, Identity | Mask) else None, truth)


def _words(recipe: Recipe, metrics: list[dict[str, Any]], has_observations: bool) -> dict[str, str]:
    """Sentences of the page that depend on the run."""
    held, clean = recipe.watch.held_out > 0, recipe.e_step.clean
    what = "samples" if clean else "observations"
    whose = f"{'held-out' if held else 'training'} {what}"
    pictures_of = f"Posterior draws for {whose}"
    if has_observations:
        pictures_of = f"{whose[0].upper()}{whose[1:]}, and posterior draws for each"
    learned = "It was trained on clean samples of x." if clean else "It was learned from the observations alone."
    if metrics[0].get("start") == "given":
        learned = "Training started from a given prior."
    keys = ("predictive_log_likelihood", "simulation_score")
    measured = any(m.get(key) is not None for m in metrics for key in keys)
    fine = f"No warnings: the draws fit the held-out {what}, and the last lap predicts these as well as the best lap."
    return {
        "lead": lead(recipe),
        "posterior": f"{pictures_of}.",
        "prior": f"Samples of the prior, with the same random numbers in every lap. {learned}",
        "fine": fine if measured else f"No warnings. No {what} were held out, so predictions were not tested.",
        "counted": f"{what} for training + held out",
    }


def _about_pictures(data: PictureData | None) -> str:
    """Sentences about the pictures of posterior draws, if samples are images."""
    text = "A standard deviation of 0 is black."
    if data is None:
        return text
    if data.entries is None:
        text = f"The first column shows Aᵀy, the observation mapped back to the pixels of x. {text}"
    return f"Unmeasured pixels are grey-blue. {text}" if np.isnan(data.seen).any() else text


def _restore(
    run: RunDir, recipe: Recipe, laps: list[int], pictured: Observations | None, device: torch.device | str
) -> None:
    def prior(lap: int) -> tuple[Prior, None]:
        return load(run.path, lap, device, "recipe"), None

    for lap in laps:
        restore_pictures(run, lap, recipe, partial(prior, lap), pictured)


def _posterior(run: RunDir, lap: int, last: int, data: PictureData | None, rows: int = 8) -> str:
    draws = read_lap_array(run, lap, "posterior.npy")
    truth = None if data is None else data.truth
    if pictures.is_image(draws[0, 0]):
        levels = pictures.limits(read_lap_array(run, last, "posterior.npy"))
        seen, title = (None, "") if data is None else (data.seen, "Aᵀy" if data.entries is None else "observation")
        png = pictures.posterior(seen, draws, truth, levels, rows, title)
    else:
        png = pictures.intervals(draws, None if data is None else data.entries, truth, rows)
    write_bytes(run.file(lap, "posterior.png"), png)
    return pictures.data_url(png)


def _samples(run: RunDir, laps: list[int], start: str) -> list[tuple[str, str]]:
    """Captions and pictures of prior samples: one picture per lap for images, one of all laps for vectors."""
    samples = {lap: read_lap_array(run, lap, "samples.npy") for lap in laps}
    last = samples[laps[-1]]
    if not pictures.is_image(last[0]):
        png = pictures.marginals({f"lap {lap}": x for lap, x in samples.items()})
        write_bytes(run.file(laps[-1], "samples.png"), png)
        return [("Neighbouring coordinates", pictures.data_url(png))]
    # all laps use the grey levels of the last one, so that they can be compared
    levels = pictures.limits(last)
    figures = []
    for lap, x in samples.items():
        png = pictures.grid(x[:64], columns=8, levels=levels)
        write_bytes(run.file(lap, "samples.png"), png)
        figures.append((f"Lap {lap}" + (f" ({start})" if lap == 0 else ""), pictures.data_url(png)))
    return figures


def _curves(run: RunDir, metrics: list[dict[str, Any]], clean: bool) -> list[tuple[str, str]]:
    out = []
    if series := lap_curves(metrics, clean):
        out.append(("Per lap", pictures.data_url(pictures.curves(series))))
    steps, losses = read_losses(run, [m["lap"] for m in metrics])
    if steps:
        curve = {"denoising loss": pictures.Curve(steps, losses)}
        out.append(("Training loss, all laps", pictures.data_url(pictures.curves(curve, "optimizer step"))))
    return out
