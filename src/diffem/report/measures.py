"""The measures of the laps as people read them: names, formats, meanings, and curves. They need no clean data."""

from __future__ import annotations

import math
from typing import Any

from .pictures import Curve

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
    (
        "noise_sigma",
        "noise level",
        "{:.4g}",
        "standard deviation of the noise, if it is estimated; with several levels their geometric mean",
    ),
    ("kept", "kept", "{:.2%}", "draws taken over from the lap before"),
    ("guards", "guards", "{:.2%}", "curvature guards per evaluation"),
    ("loss", "loss", "{:.4f}", "denoising loss at the end of the lap's training"),
    ("trained_loss", "own loss", "{:.4f}", "denoising loss afterwards on some of the draws it was trained on"),
    (
        "unseen_loss",
        "unseen loss",
        "{:.4f}",
        "the same on draws for held-out observations; much more if the network learned its draws by heart",
    ),
    (
        "gaussian_loss",
        "start's loss",
        "{:.4f}",
        "that of the Gaussian start on the draws of the lap; a network that is large enough is not above it",
    ),
    ("start_seconds", "start [s]", "{:.1f}", "time for the start"),
    ("e_seconds", "E [s]", "{:.1f}", "time for posterior draws"),
    ("m_seconds", "M [s]", "{:.1f}", "time for training"),
    ("watch_seconds", "watch [s]", "{:.1f}", "time for the measures of this table"),
]

DRAWING = {"chi2", "rejected", "kept", "guards"}  # of draws, which a run on clean samples does not make
CURVES = (
    "heldout_chi2",
    "predictive_log_likelihood",
    "hidden_coverage90",
    "hidden_spread",
    "observation_distance",
    "rejected",
    "noise_sigma",
)
LEVELS = {"hidden_coverage90": 0.9, "hidden_spread": 1.0}  # where a measure should lie
Column = tuple[str, str, str, str]


def columns(metrics: list[dict[str, Any]], clean: bool = False) -> list[Column]:
    """The columns that say something about these laps.

    Args:
        clean: Whether the run was given samples of x themselves.
    """
    known = [c for c in COLUMNS if any(m.get(c[0]) is not None for m in metrics)]
    return [c for c in known if not (clean and c[0] in DRAWING)]


def cell(lap: dict[str, Any], key: str, form: str) -> str:
    """A measure of a lap, with its standard error if it has one."""
    value = lap.get(key)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    error = lap.get("predictive_error") if key == "predictive_log_likelihood" else None
    return form.format(value) + ("" if error is None else f" ± {error:.3f}")


def lap_curves(metrics: list[dict[str, Any]], clean: bool = False) -> dict[str, Curve]:
    """The measures that are drawn, by their names; those of two laps or more."""
    out = {}
    for key, title, _, _ in (c for c in columns(metrics, clean) if c[0] in CURVES):
        laps = [m for m in metrics if m.get(key) is not None]
        if len(laps) < 2:
            continue
        errors = {"predictive_log_likelihood": "predictive_error", "hidden_coverage90": "hidden_coverage90_error"}
        error = [m.get(errors.get(key, "")) for m in laps]
        band = [float(e) for e in error if e is not None]
        x, y = [float(m["lap"]) for m in laps], [float(m[key]) for m in laps]
        # draws end with a denoising, which takes from the residual where the noise is small
        level = metrics[-1].get("expected_chi2", 1.0) if key == "heldout_chi2" else LEVELS.get(key)
        out[title] = Curve(x, y, band if len(band) == len(laps) else None, level)
    return out
