"""Headings, formats, meanings and curves of the measures of a lap, none of which need clean data."""

from __future__ import annotations

import math
from typing import Any

from .pictures import Curve

# key, heading, format, meaning
COLUMNS = [
    (
        "chi2",
        "χ²",
        "{:.3f}",
        "squared residual of the training draws per measured value; about 1 if the draws fit their observations",
    ),
    (
        "heldout_chi2",
        "held-out χ²",
        "{:.3f}",
        "the same for held-out observations: the median, divided by its expected value under the model",
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
        "sliced Wasserstein distance between real and simulated observations; lower is better",
    ),
    ("rejected", "rejected", "{:.2%}", "draws that failed the screening at the first attempt"),
    (
        "hidden_coverage90",
        "covered",
        "{:.1%}",
        "hidden values inside their 90 % predictive intervals; should be 90 %",
    ),
    (
        "hidden_spread",
        "errors / spread",
        "{:.2f}",
        "variance of the errors on hidden values divided by that of the draws; should be 1, less if draws are too wide",
    ),
    (
        "noise_sigma",
        "noise level",
        "{:.4g}",
        "standard deviation of the noise, if it is estimated; with several levels their geometric mean",
    ),
    ("kept", "kept", "{:.2%}", "draws kept from the previous lap"),
    ("guards", "guards", "{:.2%}", "curvature guards per evaluation"),
    ("loss", "loss", "{:.4f}", "denoising loss at the end of the M-step"),
    ("trained_loss", "own loss", "{:.4f}", "denoising loss after the M-step on some of the training draws"),
    (
        "unseen_loss",
        "unseen loss",
        "{:.4f}",
        "the same on draws for held-out observations; much larger if the network overfits its training draws",
    ),
    (
        "gaussian_loss",
        "start loss",
        "{:.4f}",
        "denoising loss of the Gaussian start on the draws of the lap; a large enough network is not above it",
    ),
    ("start_seconds", "start [s]", "{:.1f}", "time of the Gaussian start"),
    ("e_seconds", "E [s]", "{:.1f}", "time of the E-step: posterior draws"),
    ("m_seconds", "M [s]", "{:.1f}", "time of the M-step: training"),
    ("watch_seconds", "watch [s]", "{:.1f}", "time of the held-out evaluation"),
]

DRAWING = {"chi2", "rejected", "kept", "guards"}  # measures of E-step draws, which a run on clean samples does not have
CURVES = (
    "heldout_chi2",
    "predictive_log_likelihood",
    "hidden_coverage90",
    "hidden_spread",
    "observation_distance",
    "rejected",
    "noise_sigma",
)
LEVELS = {"hidden_coverage90": 0.9, "hidden_spread": 1.0}  # ideal values
Column = tuple[str, str, str, str]


def columns(metrics: list[dict[str, Any]], clean: bool = False) -> list[Column]:
    """The columns of the table of measures that have values.

    Args:
        metrics: The metrics of all laps.
        clean: Whether the run was trained on clean samples of x.
    """
    known = [c for c in COLUMNS if any(m.get(c[0]) is not None for m in metrics)]
    return [c for c in known if not (clean and c[0] in DRAWING)]


def cell(lap: dict[str, Any], key: str, form: str) -> str:
    """Format a measure of a lap, with its standard error if it has one."""
    value = lap.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    error = lap.get("predictive_error") if key == "predictive_log_likelihood" else None
    return form.format(value) + ("" if error is None else f" ± {error:.3f}")


def lap_curves(metrics: list[dict[str, Any]], clean: bool = False) -> dict[str, Curve]:
    """Curves of the measures that have values in at least two laps, by heading."""
    out = {}
    for key, title, _, _ in (c for c in columns(metrics, clean) if c[0] in CURVES):
        laps = [m for m in metrics if m.get(key) is not None]
        if len(laps) < 2:
            continue
        errors = {"predictive_log_likelihood": "predictive_error", "hidden_coverage90": "hidden_coverage90_error"}
        error = [m.get(errors.get(key, "")) for m in laps]
        band = [float(e) for e in error if e is not None]
        x, y = [float(m["lap"]) for m in laps], [float(m[key]) for m in laps]
        # the last denoising step of a draw reduces the residual if σ_y is small, so the expected χ² may be below 1
        level = metrics[-1].get("expected_chi2", 1.0) if key == "heldout_chi2" else LEVELS.get(key)
        out[title] = Curve(x, y, band if len(band) == len(laps) else None, level)
    return out
