"""The report of an imputation: one HTML page."""

from __future__ import annotations

import base64
from importlib.resources import files

import numpy as np
import pandas as pd

from ..report.pictures import ACCENT, MUTED, new_figure, to_png
from .assessment import ColumnAssessment
from .columns import Column

PICTURES = 24  # columns with a picture, those with most gaps
SHOWN = 12  # categories in a picture
LOW, HIGH = 0.8, 0.97  # coverage of 90 % intervals outside which there is a warning
MANY = 50  # hidden values from which it is trusted that far


def write_page(
    title: str, frame: pd.DataFrame, drawn: pd.DataFrame, columns: list[Column], found: list[ColumnAssessment]
) -> str:
    """The page.

    Args:
        title: Its heading.
        frame: The table with gaps.
        drawn: The table completed with one draw.
        columns: What the columns hold.
        found: The assessment of each.
    """
    from jinja2 import Environment

    with_gaps = sorted((k for k, column in enumerate(found) if column.missing), key=lambda k: -found[k].missing)
    pictures = [(str(columns[k].name), _picture(frame, drawn, columns[k])) for k in with_gaps[:PICTURES]]
    page = Environment(autoescape=True).from_string((files("diffem.tables") / "report.html").read_text())
    covered = [column for column in found if column.coverage90 is not None]
    weights = np.array([column.hidden for column in covered])
    return page.render(
        title=title,
        rows=len(frame),
        columns=len(columns),
        missing=float(frame.isna().to_numpy().mean()),
        complete=float(frame.notna().all(axis=1).mean()),
        coverage=float(weights @ [column.coverage90 for column in covered] / weights.sum()) if covered else None,
        warnings=warnings_of(found),
        found=found,
        pictures=pictures,
        left_out=len(with_gaps) - len(pictures),
    )


def warnings_of(found: list[ColumnAssessment]) -> list[str]:
    """What a reader should know before using the imputations."""
    texts = []
    depending = [column for column in found if column.gaps_depend]
    if depending:
        names = ", ".join(f"{column.name} (AUC {column.gap_auc:.2f})" for column in depending[:8])
        more = f" and {len(depending) - 8} more" if len(depending) > 8 else ""
        texts.append(
            f"The gaps are not completely at random: other columns predict where values are missing in {names}{more}. "
            "The imputations use the other columns and take this into account. They are biased if gaps also depend on "
            "the missing values themselves, which no data can show."
        )
    for column in found:
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
    """Observed and imputed values of a column, as a PNG in a URL."""
    gone = frame[column.name].isna().to_numpy()
    numbers = column.numbers(drawn[column.name])
    observed, imputed = numbers[~gone], numbers[gone]
    observed, imputed = observed[~np.isnan(observed)], imputed[~np.isnan(imputed)]
    figure, axes = new_figure(3.6, 2.1)
    axis = axes[0, 0]
    if column.is_categorical:
        count = len(column.categories)
        order = np.argsort(-np.bincount(observed.astype(int), minlength=count))[:SHOWN]
        for values, colour, shift, label in ((observed, MUTED, -0.2, "observed"), (imputed, ACCENT, 0.2, "imputed")):
            share = np.bincount(values.astype(int), minlength=count)[order] / max(1, len(values))
            axis.bar(np.arange(len(order)) + shift, share, width=0.4, color=colour, label=label)
        axis.set_xticks(np.arange(len(order)), [str(column.categories[k])[:10] for k in order], rotation=45, fontsize=7)
    else:
        low, high = np.percentile(observed, [0.5, 99.5])
        edges = np.linspace(low, high if high > low else low + 1, 31)
        axis.hist(observed, edges, density=True, color=MUTED, alpha=0.7, label="observed")
        axis.hist(imputed, edges, density=True, histtype="step", color=ACCENT, linewidth=1.5, label="imputed")
    axis.set_yticks([])
    axis.tick_params(labelsize=7)
    axis.legend(fontsize=7, frameon=False)
    return "data:image/png;base64," + base64.b64encode(to_png(figure)).decode()
