"""The columns and curves of the table of metrics; none of them need clean data."""

from __future__ import annotations

from typing import Any

from ..runs.lap_metrics import METRIC, METRICS, Metric, parameter_metrics, with_parameters
from .pictures import Curve

Column = tuple[str, str, str, str]  # key, heading, format, meaning


def columns(metrics: list[dict[str, Any]], clean: bool = False) -> list[Column]:
    """Return the columns of the table of metrics that have values.

    Args:
        metrics: The metrics of all laps.
        clean: Whether the run was trained on clean samples of x.
    """
    listed = [*METRICS, *parameter_metrics(metrics)]
    metrics = [with_parameters(lap) for lap in metrics]
    known = [m for m in listed if m.heading and any(lap.get(m.key) is not None for lap in metrics)]
    return [(m.key, m.heading, m.form, m.meaning) for m in known if not (clean and m.of_draws)]


def cell(lap: dict[str, Any], key: str, form: str) -> str:
    """Format a metric of a lap, with its standard error if the table shows it."""
    metric = _metrics([lap]).get(key)
    return "–" if metric is None else metric.text(with_parameters(lap), form)


def _metrics(laps: list[dict[str, Any]]) -> dict[str, Metric]:
    return METRIC | {metric.key: metric for metric in parameter_metrics(laps)}


def lap_curves(metrics: list[dict[str, Any]], clean: bool = False) -> dict[str, Curve]:
    """Return the curves of the plotted metrics, by heading. A metric needs the values of at least two laps."""
    out, shown = {}, columns(metrics, clean)
    known, metrics = _metrics(metrics), [with_parameters(lap) for lap in metrics]
    for key, title, _, _ in shown:
        metric, laps = known[key], [lap for lap in metrics if lap.get(key) is not None]
        if not metric.curve or len(laps) < 2:
            continue
        errors = [] if metric.error is None else [lap.get(metric.error) for lap in laps]
        band = [float(error) for error in errors if error is not None]
        x, y = [float(lap["lap"]) for lap in laps], [float(lap[key]) for lap in laps]
        # draws end with a denoising, which reduces the residual if the noise is small
        level = metrics[-1].get("expected_chi2", 1.0) if key == "heldout_chi2" else metric.ideal
        out[title] = Curve(x, y, band if len(band) == len(laps) else None, level, metric.form.endswith("%}"))
    return out
