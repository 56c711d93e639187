"""The report of an imputation: one HTML page."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
import pandas as pd

from ..report.pictures import ACCENT, MUTED, data_url, new_figure, to_png
from .assessment import ColumnAssessment
from .columns import Column

PICTURES = 24  # largest number of columns with a picture, those with most gaps
MOST_BARS = 12  # largest number of categories or whole numbers that are drawn as bars
LEAST_BINS, MOST_BINS = 8, 30  # limits for the bins of a histogram
LETTERS = 36  # characters that fit below a picture in one line
LOW, HIGH = 0.8, 0.97  # coverage of 90 % intervals outside which there is a warning
MANY = 50  # smallest number of hidden values for this warning


def write_page(
    title: str,
    frame: pd.DataFrame,
    drawn: pd.DataFrame,
    columns: list[Column],
    assessments: list[ColumnAssessment],
    calibrated: bool = False,
) -> str:
    """Render the page.

    Args:
        frame: The table with gaps.
        drawn: The table completed with one draw.
        assessments: The assessments of the columns.
        calibrated: Whether the spread of the imputations was calibrated.
    """
    from jinja2 import Environment

    with_gaps = sorted(
        (k for k, column in enumerate(assessments) if column.missing), key=lambda k: -assessments[k].missing
    )
    pictures = [(str(columns[k].name), _picture(frame, drawn, columns[k])) for k in with_gaps[:PICTURES]]
    page = Environment(autoescape=True).from_string((files("diffem.tables") / "report.html").read_text("utf-8"))
    covered = [column for column in assessments if column.coverage90 is not None]
    weights = np.array([column.hidden for column in covered])
    return page.render(
        title=title,
        rows=len(frame),
        columns=len(columns),
        missing=float(frame.isna().to_numpy().mean()),
        complete=float(frame.notna().all(axis=1).mean()),
        coverage=float(weights @ [column.coverage90 for column in covered] / weights.sum()) if covered else None,
        warnings=warnings_of(assessments),
        found=assessments,
        pictures=pictures,
        colours=(MUTED, ACCENT),
        calibrated=calibrated,
        left_out=len(with_gaps) - len(pictures),
    )


def warnings_of(assessments: list[ColumnAssessment]) -> list[str]:
    """Return warnings for users of the imputations."""
    texts = []
    depending = [column for column in assessments if column.gaps_depend]
    if depending:
        names = ", ".join(f"{column.name} (AUC {column.gap_auc:.2f})" for column in depending[:8])
        more = f" and {len(depending) - 8} more" if len(depending) > 8 else ""
        texts.append(
            f"The gaps are not completely at random: other columns predict where values are missing in {names}{more}. "
            "The imputations use the other columns and take this into account. They are biased if gaps also depend on "
            "the missing values themselves, which no data can show."
        )
    for column in assessments:
        if column.coverage90 is not None and column.hidden >= MANY and not LOW <= column.coverage90 <= HIGH:
            width = "narrow" if column.coverage90 < LOW else "wide"
            texts.append(
                f"The uncertainty of {column.name} is too {width}: {column.coverage90:.0%} of {column.hidden} hidden "
                "values lie in their 90 % intervals."
            )
        if column.missing > 0.8:
            texts.append(f"{column.missing:.0%} of {column.name} is missing: its imputations rest on few values.")
    return texts


def _picture(frame: pd.DataFrame, drawn: pd.DataFrame, column: Column) -> str:
    """Draw the observed and imputed values of a column; returns a data URL. The page explains the colours."""
    missing = frame[column.name].isna().to_numpy()
    numbers = column.numbers(drawn[column.name])
    observed, imputed = numbers[~missing], numbers[missing]
    observed, imputed = observed[~np.isnan(observed)], imputed[~np.isnan(imputed)]
    figure, axes = new_figure(3.6, 2.1)
    axis = axes[0, 0]
    levels = np.unique(observed)
    if column.is_categorical:
        counts = np.bincount(observed.astype(int), minlength=len(column.categories))
        order = np.argsort(-counts, kind="stable")[:MOST_BARS]
        _bars(axis, observed, imputed, order, [str(column.categories[k])[:10] for k in order])
    elif column.kind == "integer" and len(levels) <= MOST_BARS:
        _bars(axis, observed, imputed, levels, [f"{level:g}" for level in levels])
    else:
        low, high = np.percentile(observed, [0.5, 99.5])
        bins = int(np.clip(1.5 * np.sqrt(len(imputed)), LEAST_BINS, MOST_BINS))  # few values need wide bins
        edges = np.linspace(low, high if high > low else low + 1, bins + 1)
        axis.hist(observed, edges, density=True, color=MUTED, alpha=0.7)
        axis.hist(imputed, edges, density=True, histtype="step", color=ACCENT, linewidth=1.5)
    axis.set_yticks([])
    axis.spines[["top", "left", "right"]].set_visible(False)
    axis.tick_params(labelsize=7)
    return data_url(to_png(figure))


def _bars(axis: Any, observed: np.ndarray, imputed: np.ndarray, values: np.ndarray, labels: list[str]) -> None:
    """Draw the frequencies of values among the observed and the imputed ones, side by side."""
    places = np.arange(len(values))
    for some, colour, shift in ((observed, MUTED, -0.2), (imputed, ACCENT, 0.2)):
        axis.bar(places + shift, (some[:, None] == values).sum(0) / max(1, len(some)), width=0.4, color=colour)
    crowded = sum(map(len, labels)) > LETTERS
    turned = {"rotation": 30 if crowded else 0, "ha": "right" if crowded else "center"}
    axis.set_xticks(places, labels, parse_math=False, **turned)  # a category may contain dollar signs
