"""Pictures as PNG bytes: grids of images, marginals of vectors, posterior draws of both, and curves."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

# Colours of all pages: observations and curves, draws, truth.
INK, ACCENT, MUTED = "#1b3a4b", "#c8553d", "#8d99ae"


def new_figure(width: float, height: float, **grid: Any) -> tuple[Any, Any]:
    """A matplotlib figure without a window, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(**grid, squeeze=False)


def to_png(figure: Any) -> bytes:
    """Render a figure."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    return buffer.getvalue()


def show_image(axis: Any, image: np.ndarray, **options: Any) -> None:
    """Draw an image without ticks and frame; options: those of `imshow`."""
    axis.imshow(image, **options)
    axis.set(xticks=[], yticks=[])
    for spine in axis.spines.values():
        spine.set_visible(False)


def pixels_png(pixels: np.ndarray, factor: int) -> bytes:
    """Encode pixels, uint8 `(H, W)` or `(H, W, 3)`, enlarged by a whole factor without interpolation."""
    from PIL import Image

    image, buffer = Image.fromarray(pixels), io.BytesIO()
    image.resize((image.width * factor, image.height * factor), Image.Resampling.NEAREST).save(buffer, "PNG")
    return buffer.getvalue()


def data_url(png: bytes) -> str:
    """The address of a PNG that is embedded in a page."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def as_image(x: np.ndarray) -> np.ndarray | None:
    """Convert a sample to `(H, W)` or `(H, W, 3)`; None if it is not an image. Complex images become magnitudes."""
    if x.ndim == 2 and min(x.shape) >= 4:
        return x
    if x.ndim == 3 and x.shape[-1] == 2 and min(x.shape[:2]) >= 4:
        return np.hypot(x[..., 0], x[..., 1])
    if x.ndim == 3 and x.shape[0] == 3:
        return np.moveaxis(x, 0, -1)
    if x.ndim == 3 and x.shape[0] in (1, 2):
        return x[0] if x.shape[0] == 1 else np.hypot(x[0], x[1])
    return None


def is_image(x: np.ndarray) -> bool:
    """Whether a sample is an image."""
    return as_image(x) is not None


def between(image: np.ndarray, low: float, high: float) -> np.ndarray:
    """Convert values to brightness in [0, 1], black at `low` and white at `high`; NaN stays NaN."""
    return np.clip((image - low) / (high - low), 0, 1)


def limits(x: np.ndarray) -> tuple[float, float]:
    """Values to display as black and white: the 0.5 % and 99.5 % quantiles."""
    finite = x[np.isfinite(x)]
    low, high = np.percentile(finite, [0.5, 99.5]) if finite.size else (-1.0, 1.0)
    return float(low), float(high) if high > low else float(low) + 1


def grid(x: np.ndarray, columns: int = 16, levels: tuple[float, float] | None = None) -> bytes:
    """Draw samples `(n, *event)` as a grid of images, or as two-dimensional marginals if they are vectors."""
    if not is_image(x[0]):
        return marginals({"samples": x})
    images = [as_image(sample) for sample in x]
    low, high = levels or limits(x)
    height, width = images[0].shape[:2]  # type: ignore[union-attr]
    rows = -(-len(images) // columns)
    colour = images[0].shape[2:]  # type: ignore[union-attr]
    gap = max(1, height // 16)
    canvas = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, *colour), np.nan)
    for i, image in enumerate(images):
        top, left = (i // columns) * (height + gap), (i % columns) * (width + gap)
        canvas[top : top + height, left : left + width] = image
    return raster(canvas, low, high, 900 / canvas.shape[1])


def raster(canvas: np.ndarray, low: float, high: float, scale: float = 1.0) -> bytes:
    """Draw pixels without axes and without interpolation; NaN is white."""
    bright = between(canvas, low, high)
    brightness = np.where(np.isnan(bright), 1.0, bright)
    return pixels_png((255 * brightness).astype(np.uint8), max(1, round(scale)))


def _box(values: np.ndarray) -> tuple[float, float]:
    """Limits of an axis that contains all values with a margin; length 1 if all values are equal."""
    low, high = float(values.min()), float(values.max())
    margin = 0.1 * (high - low) or 0.5
    return low - margin, high + margin


PAIRS = 4  # largest number of pairs of neighbouring coordinates
FEW = 4096  # fewer points are drawn individually, more as a histogram
BINS = 120  # bins of that histogram per axis


def marginals(sets: dict[str, np.ndarray]) -> bytes:
    """Draw two-dimensional marginals of neighbouring coordinates.

    Args:
        sets: Points `(n, d)` by title; one row each, with the axes of the first set.
    """
    first = next(iter(sets.values()))
    d = min(first.reshape(len(first), -1).shape[1], PAIRS + 1)
    pairs = [(i, i + 1) for i in range(d - 1)] or [(0, 0)]
    figure, axes = new_figure(2.6 * len(pairs), 2.5 * len(sets), nrows=len(sets), ncols=len(pairs))
    boxes = [_box(first.reshape(len(first), -1)[:, i]) for i in range(d)]
    for row, (name, points) in enumerate(sets.items()):
        flat = points.reshape(len(points), -1)
        for column, (i, j) in enumerate(pairs):
            axis = axes[row][column]
            box = [boxes[i], boxes[j]]
            if len(flat) < FEW:
                size = 4 if len(flat) > FEW // 8 else 7
                axis.plot(flat[:, i], flat[:, j], ".", color=ACCENT, markersize=size, markeredgewidth=0, alpha=0.6)
            else:
                counts, _, _ = np.histogram2d(flat[:, i], flat[:, j], bins=BINS, range=box)
                axis.imshow(
                    np.log1p(counts.T), origin="lower", cmap="magma_r", extent=[*box[0], *box[1]], aspect="auto"
                )
            axis.set(xlim=box[0], ylim=box[1], xlabel=f"$x_{{{i + 1}}}$", ylabel=f"$x_{{{j + 1}}}$")
            axis.locator_params(nbins=4)
            axis.tick_params(labelsize=7)
            if column == 0:
                axis.set_title(name, fontsize=9, loc="left")
    return to_png(figure)


def posterior(
    observations: np.ndarray | None,
    draws: np.ndarray,
    truth: np.ndarray | None = None,
    levels: tuple[float, float] | None = None,
    rows: int = 8,
    title: str = "observation",
) -> bytes:
    """Draw one row per observation: the observation, draws, their mean and standard deviation, and the truth.

    Args:
        observations: `(n, *event)`, NaN at unmeasured entries; None leaves them out.
        draws: `(k, n, *event)`.
        truth: `(n, *event)`; None leaves it out.
        levels: The values of x that are black and white.
        rows: Largest number of observations.
        title: Title of the column of observations.
    """
    first = as_image(draws[0, 0])
    if first is None:
        return marginals({"posterior draws": draws.reshape(-1, *draws.shape[2:])})
    tall = min(max(first.shape[0] / first.shape[1], 0.2), 1.5)
    shown = min(4, len(draws))
    mean, std = draws.mean(0), [_deviation_per_pixel(x) for x in draws.std(0)]
    titles = [title] if observations is not None else []
    titles += [*(f"draw {k + 1}" for k in range(shown)), f"mean of {len(draws)}", "std"]
    titles += ["truth"] if truth is not None else []
    rows = min(rows, draws.shape[1])
    figure, axes = new_figure(1.15 * len(titles), 0.25 + (0.05 + 1.15 * tall) * rows, nrows=rows, ncols=len(titles))
    low, high = levels or limits(draws)
    top = float(np.percentile(std, 99)) or 1.0
    for r in range(rows):
        panels = [] if observations is None else [observations[r]]
        panels += [*(draws[k, r] for k in range(shown)), mean[r], std[r]]
        panels += [truth[r]] if truth is not None else []
        for c, (axis, panel) in enumerate(zip(axes[r], panels, strict=True)):
            is_std = titles[c] == "std"
            image = panel if is_std else as_image(panel)
            assert image is not None
            if not is_std:
                axis.set_facecolor("#dfe4ea")
            bright = between(image, 0 if is_std else low, top if is_std else high)
            show_image(axis, bright, cmap="magma" if is_std else "gray", vmin=0, vmax=1)
            if r == 0:
                axis.set_title(titles[c], fontsize=9)
    return to_png(figure)


def _deviation_per_pixel(std: np.ndarray) -> np.ndarray:
    """Combine the standard deviations of the channels of an image to one per pixel, `(H, W)`."""
    image = as_image(std)
    assert image is not None
    return image if image.ndim == 2 else np.sqrt(np.square(image).mean(-1))  # colours; complex numbers are combined


SEPARATE = 64  # entries; longer vectors are drawn as bands instead of separate intervals


def intervals(
    draws: np.ndarray, measured: np.ndarray | None = None, truth: np.ndarray | None = None, rows: int = 8
) -> bytes:
    """Draw one panel per observation, in two columns.

    Each panel has its own scale, so that one observation with wide intervals does not flatten the others.

    Args:
        draws: `(k, n, *event)`.
        measured: `(n, *event)`. The measured entries of x, NaN elsewhere; None if A does not measure single entries.
        truth: `(n, *event)`, if it is known.
        rows: Largest number of observations.
    """
    k, n = draws.shape[:2]
    flat = draws.reshape(k, n, -1)
    shown, size = min(rows, n), flat.shape[-1]
    figure, axes = new_figure(9.6, 0.5 + 1.7 * -(-shown // 2), nrows=-(-shown // 2), ncols=min(2, shown), sharex=True)
    entries = np.arange(1, size + 1)
    seen = None if measured is None else measured.reshape(n, -1)
    for i, axis in enumerate(axes.flat):
        if i >= shown:
            axis.set_axis_off()
            continue
        low, high = np.percentile(flat[:, i], [5, 95], axis=0)
        mean = flat[:, i].mean(0)
        if size > SEPARATE:
            axis.fill_between(entries, low, high, color=ACCENT, alpha=0.3, linewidth=0, label="90 % of the draws")
            axis.plot(entries, mean, color=ACCENT, linewidth=1.2, label="mean of the draws")
        else:
            axis.vlines(entries, low, high, color=ACCENT, alpha=0.5, linewidth=5, label="90 % of the draws")
            axis.plot(entries, mean, "_", color=ACCENT, markersize=9, markeredgewidth=2, label="mean of the draws")
        if truth is not None:
            axis.plot(entries, truth.reshape(n, -1)[i], "x", color=MUTED, markersize=6, label="truth")
        if seen is not None:
            axis.plot(entries, seen[i], "o", color=INK, markersize=4, label="measured")
        axis.set_title(f"observation {i + 1}", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
        axis.xaxis.get_major_locator().set_params(integer=True)
        axis.grid(alpha=0.25)
        if i >= shown - 2:
            axis.set_xlabel("entry of x", fontsize=8)
    handles, labels = axes.flat[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=9, frameon=False)
    return to_png(figure)


@dataclass(frozen=True)
class Curve:
    """A measure as a function of the lap or the optimizer step.

    Attributes:
        x: Laps or optimizer steps.
        y: Values.
        error: Standard errors of the values, drawn as a band, or None.
        level: The ideal value, drawn as a line, or None.
        percent: Whether values are fractions that are shown as percentages.
    """

    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    level: float | None = None
    percent: bool = False


def curves(series: dict[str, Curve], xlabel: str = "lap", columns: int = 3) -> bytes:
    """Draw curves, by title, in rows of at most `columns` plots."""
    from matplotlib.ticker import PercentFormatter

    columns = min(columns, len(series))
    rows = -(-len(series) // columns)
    figure, axes = new_figure(9.6, 2.9 * rows, nrows=rows, ncols=columns)
    figure.get_layout_engine().set(h_pad=0.1)  # inches, so that titles keep away from the labels above them
    for axis in axes.flat[len(series) :]:
        axis.set_axis_off()
    for axis, (title, curve) in zip(axes.flat, series.items(), strict=False):
        x, y = np.asarray(curve.x, dtype=float), np.asarray(curve.y, dtype=float)
        if curve.level is not None:
            ideal = f"{curve.level:.0%}" if curve.percent else f"{curve.level:.2g}"
            axis.axhline(curve.level, color=MUTED, linewidth=1.2, linestyle="--", label=f"should be {ideal}")
        if curve.error is not None:
            error = np.asarray(curve.error, dtype=float)
            axis.fill_between(x, y - error, y + error, color=INK, alpha=0.15, linewidth=0, label="± standard error")
        axis.plot(x, y, color=INK, marker="o" if len(x) < 40 else None, markersize=5, linewidth=1.8)
        axis.set_title(title, fontsize=12, color="#333333")
        axis.set_xlabel(xlabel, fontsize=10)
        axis.tick_params(labelsize=10)
        axis.grid(alpha=0.25)
        if curve.level is not None or curve.error is not None:
            axis.legend(fontsize=9, frameon=False)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        if curve.percent and not y.any():
            axis.set_ylim(0, 0.01)  # matplotlib would centre the axis at 0 and show negative percentages
        if curve.percent:
            axis.yaxis.set_major_formatter(PercentFormatter(1))
        if xlabel == "lap":
            axis.xaxis.get_major_locator().set_params(integer=True)
    return to_png(figure)
