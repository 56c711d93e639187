"""HTML with embedded pictures: nothing is written to disk, and the browser loads no other file."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np

from ..core.counting import count_of
from ..report import pictures
from ..report.measures import columns, lap_curves
from .drawing import PosteriorDraws
from .status import Progress

SIDE = 168  # smaller pictures are enlarged to at least this many pixels
MISSING = (0.874, 0.894, 0.918)  # grey-blue, as in the reports: unmeasured entries
DARKER = (0.741, 0.773, 0.812)  # the same for colour maps in which white means zero
RESIDUALS = 4.0  # standard deviations at the ends of the colour scale of residuals


def grey_image(x: np.ndarray, levels: tuple[float, float]) -> np.ndarray:
    """Convert a sample to RGB in [0, 1], `(H, W, 3)`.

    Args:
        x: `(*event)`. NaN becomes grey-blue.
        levels: The values of x that are black and white.
    """
    image = pictures.between(_image(x), *levels)
    rgb = image if image.ndim == 3 else np.repeat(image[..., None], 3, -1)
    return np.where(np.isnan(rgb), MISSING, rgb)


def colour_image(x: np.ndarray, low: float, high: float, colours: str) -> np.ndarray:
    """Convert numbers to colours of a matplotlib colour map, `(H, W, 3)`; channels are averaged."""
    from matplotlib import colormaps

    image = x.mean(0) if x.ndim == 3 and x.shape[0] == 3 else _image(x)
    rgb = colormaps[colours](np.clip((image - low) / (high - low), 0, 1))[..., :3]
    return np.where(np.isnan(image)[..., None], DARKER, rgb)


def _image(x: np.ndarray) -> np.ndarray:
    image = pictures.as_image(x)
    assert image is not None
    return image


def encode(rgb: np.ndarray) -> str:
    """Encode a picture as a PNG data URL; small pictures are enlarged without interpolation."""
    pixels = (255 * np.clip(rgb, 0, 1)).round().astype(np.uint8)
    return pictures.data_url(pictures.pixels_png(pixels, max(1, -(-SIDE // max(rgb.shape[:2])))))


def figure(source: str, caption: str, kind: str = "") -> str:
    """A picture with a caption; `kind` is its CSS class."""
    text = escape(caption)
    return f'<figure class="{kind}"><img src="{source}" alt="{text}"><figcaption>{text}</figcaption></figure>'


def message(text: str) -> str:
    """An error message."""
    return f'<div class="refused" role="alert">{escape(text)}</div>'


def note(text: str) -> str:
    """A paragraph in small print."""
    return f'<p class="note">{escape(text)}</p>'


def bar(low: str, high: str, meaning: str, colours: str = "gray") -> str:
    """A colour bar with labelled ends, for a legend."""
    from matplotlib import colormaps

    shades = [tuple(round(255 * v) for v in colormaps[colours](k / 8)[:3]) for k in range(9)]
    gradient = ", ".join(f"rgb{shade}" for shade in shades)
    scale = f'<i class="bar" style="background: linear-gradient(to right, {gradient})"></i>'
    return f"<span><b>{escape(meaning)}</b> {escape(low)} {scale} {escape(high)}</span>"


def patch(colour: tuple[float, float, float], meaning: str) -> str:
    """A patch of one colour, for a legend."""
    rgb = tuple(round(255 * v) for v in colour)
    return f'<span><i class="bar patch" style="background: rgb{rgb}"></i> {escape(meaning)}</span>'


def legend(*entries: str) -> str:
    return f'<div class="legend">{"".join(entries)}</div>'


def grey_bar(levels: tuple[float, float]) -> str:
    """A colour bar with the values of x that are black and white."""
    return bar(f"{levels[0]:.3g}", f"{levels[1]:.3g}", "values of x")


def samples(x: np.ndarray, levels: tuple[float, float], caption: str, explained: bool = True) -> str:
    """Prior samples `(n, *event)`, with a legend if `explained`."""
    if pictures.is_image(x[0]):
        tiles = "".join(f'<img src="{encode(grey_image(s, levels))}" alt="sample {i}">' for i, s in enumerate(x))
        below = legend(grey_bar(levels)) if explained else ""
        return (note(caption) if caption else "") + f'<div class="tiles">{tiles}</div>{below}'
    return note(caption) + figure(
        pictures.data_url(pictures.marginals({"samples": x})), "neighbouring entries of x", "wide"
    )


def vectors(draws: np.ndarray) -> str:
    """Posterior draws of vectors, `(draws, observations, *event)`."""
    return figure(pictures.data_url(pictures.intervals(draws)), "the draws, entry by entry", "wide")


def posterior(c: PosteriorDraws, levels: tuple[float, float], caption: str) -> str:
    """The observation, mean, standard deviation and residual of the draws, the truth if it is known, and the draws."""
    lead = "".join(note(text) for text in [caption, *c.notes])
    shown = _posterior_images(c, levels) if pictures.is_image(c.draws[0].numpy()) else _posterior_vectors(c)
    return lead + _facts(c) + shown


def _posterior_vectors(c: PosteriorDraws) -> str:
    """Draws of vectors: intervals of every entry, pairs of neighbouring entries, and a table of the first 16."""
    draws = c.draws.numpy()
    rows = "".join(
        f"<tr><td>{i + 1}</td><td>{m:.3f}</td><td>{s:.3f}</td></tr>"
        for i, (m, s) in enumerate(zip(c.mean.flatten()[:16].tolist(), c.std.flatten()[:16].tolist(), strict=True))
    )
    table = f"<table><tr><th>entry of x</th><th>mean</th><th>std</th></tr>{rows}</table>"
    measured, truth = (None if t is None else t.numpy()[None] for t in (c.entries, c.truth))
    spread = figure(
        pictures.data_url(pictures.intervals(draws[:, None], measured, truth)), "the draws, entry by entry", "wide"
    )
    pairs = figure(
        pictures.data_url(pictures.marginals({"draws": draws})), "the draws, neighbouring entries of x", "wide"
    )
    return spread + pairs + table


def _posterior_images(c: PosteriorDraws, levels: tuple[float, float]) -> str:
    """Draws of images: a panel per quantity with a legend, and a tile per draw."""
    draws, std, residual = c.draws.numpy(), c.std.numpy(), c.residual.numpy()
    top = float(np.percentile(std, 99)) or 1.0
    legends = [grey_bar(levels), patch(MISSING, "not measured"), bar("0", f"{top:.2g}", "standard deviation", "magma")]
    panels = [figure(encode(grey_image(c.seen.numpy(), levels)), c.name, "seen")]
    panels.append(figure(encode(grey_image(c.mean.numpy(), levels)), f"mean of {count_of(len(draws), 'draw')}", "mean"))
    panels.append(figure(encode(colour_image(std, 0, top, "magma")), "standard deviation of the draws", "std"))
    if pictures.is_image(residual):
        panels.append(
            figure(encode(colour_image(residual, -RESIDUALS, RESIDUALS, "RdBu")), "residual of the mean", "residual")
        )
        ends = f"−{RESIDUALS:.0f} σ", f"{RESIDUALS:.0f} σ"
        legends.append(bar(*ends, "residual y − A·mean, in units of the noise level", "RdBu"))
    if c.truth is not None:
        panels.append(figure(encode(grey_image(c.truth.numpy(), levels)), "truth (not used for the draws)", "truth"))
    tiles = "".join(f'<img src="{encode(grey_image(d, levels))}" alt="draw {i + 1}">' for i, d in enumerate(draws))
    first = f'<div class="panels">{"".join(panels)}</div>{legend(*legends)}'
    return f'{first}<h4>Draws</h4><div class="tiles draws">{tiles}</div>'


def _facts(c: PosteriorDraws) -> str:
    chi2 = float(c.chi2.median())
    cells = [
        (
            "–" if math.isnan(chi2) else f"{chi2:.2f}",
            "χ² per measured value, about 1 if the draws fit the observation",
        ),
        (f"{int((~c.residual.isnan()).sum())}", "measured values"),
        (f"{float(c.std.mean()):.3f}", "mean standard deviation"),
    ]
    if c.truth is not None:
        error = float((c.mean - c.truth).square().mean())
        cells.append((f"{error:.3f}", "mean squared error of the mean"))
    return '<div class="facts">' + "".join(f"<div><b>{a}</b>{escape(b)}</div>" for a, b in cells) + "</div>"


def status(p: Progress) -> str:
    """One line with the progress of the run, and its verdict."""
    quiet = f"{p.quiet:.0f} s" if p.quiet < 120 else f"{p.quiet / 60:.0f} min"
    state = (
        f"finished, {count_of(p.laps, 'lap')}"
        if p.last >= p.laps
        else f"{p.status}: lap {max(p.last, 0)} of {p.laps} done"
    )
    if p.status == "exported":
        state = "an exported prior, without laps, metrics or observations"
    if p.last < 0:
        state = f"{p.status}: no lap is finished yet"
    stage = f" · {p.stage} · last file written {quiet} ago" if p.stage else ""
    named = f'<div class="refused" id="verdict">{escape(p.verdict.text)}</div>' if p.verdict and p.verdict.worse else ""
    best = f" · {p.verdict.text}" if p.verdict and not named else ""
    return f'<span class="status">{escape(state + stage + best)}</span>{named}'


def measures(metrics: list[dict[str, Any]], clean: bool = False) -> str:
    """The table of metrics, one row per lap, and the meaning of its columns."""
    shown = columns(metrics, clean)
    head = "".join(f'<th title="{escape(m.meaning)}">{escape(m.heading)}</th>' for m in shown)
    rows = "".join(
        f"<tr><td>{lap['lap']}</td>" + "".join(f"<td>{m.text(lap)}</td>" for m in shown) + "</tr>" for lap in metrics
    )
    meanings = "".join(f"<dt>{escape(m.heading)}</dt><dd>{escape(m.meaning)}</dd>" for m in shown)
    table = f"<table><tr><th>lap</th>{head}</tr>{rows}</table>"
    return f'<div class="scroll">{table}</div><dl class="meanings">{meanings}</dl>'


def curves(metrics: list[dict[str, Any]], loss: tuple[list[float], list[float]], clean: bool = False) -> str:
    """Curves of the metrics that need no clean data, one point per lap, and of the training loss."""
    series = lap_curves(metrics, clean)
    out = (
        figure(pictures.data_url(pictures.curves(series)), "metrics per lap, on held-out data", "wide")
        if series
        else ""
    )
    if loss[0]:
        trained = {"denoising loss": pictures.Curve(*loss)}
        out += figure(pictures.data_url(pictures.curves(trained, "optimizer step")), "training, all laps", "wide")
    return out


def warnings(found: list[tuple[int, str]]) -> str:
    """The warnings of all laps; `found` contains pairs of lap and text."""
    return "".join(f'<div class="refused"><b>Lap {lap}.</b> {escape(text)}</div>' for lap, text in found)
