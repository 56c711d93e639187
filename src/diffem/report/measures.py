"""The columns and curves of the table of metrics; none of them need clean data."""

from __future__ import annotations

from typing import Any

from ..runs.lap_metrics import METRICS, Metric, parameter_metrics, with_parameters
from .pictures import Curve


def columns(metrics: list[dict[str, Any]], clean: bool = False) -> list[Metric]:
    """Return the metrics that the table shows: those that have a heading and values.

    Args:
        clean: Whether the run was trained on clean samples of x.
    """
    laps = [with_parameters(lap) for lap in metrics]
    listed = [m for m in (*METRICS, *parameter_metrics(metrics)) if m.heading and not (clean and m.of_draws)]
    return [m for m in listed if any(lap.get(m.key) is not None for lap in laps)]


def lap_curves(metrics: list[dict[str, Any]], clean: bool = False) -> dict[str, Curve]:
    """Return the curves of the plotted metrics, by heading. A metric needs the values of at least two laps."""
    out, values = {}, [with_parameters(lap) for lap in metrics]
    for metric in columns(metrics, clean):
        laps = [lap for lap in values if lap.get(metric.key) is not None]
        if not metric.curve or len(laps) < 2:
            continue
        errors = [] if metric.error is None else [lap.get(metric.error) for lap in laps]
        band = [float(error) for error in errors if error is not None]
        x, y = [float(lap["lap"]) for lap in laps], [float(lap[metric.key]) for lap in laps]
        # draws end with a denoising, which reduces the residual if the noise is small
        level = metrics[-1].get("expected_chi2", 1.0) if metric.key == "heldout_chi2" else metric.ideal
        out[metric.heading] = Curve(x, y, band if len(band) == len(laps) else None, level, metric.form.endswith("%}"))
    return out
