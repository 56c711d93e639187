"""What can be told about imputations without the missing values.

Some observed values are left out of the fit. They are predicted from the rest of their rows, which gives errors and the
coverage of intervals for values that are missing at random. Whether the gaps of a column depend on the other columns is
measured by how well those predict where the gaps are (the area under the ROC curve of a logistic regression,
cross-validated).
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ..core.randomness import Stream
from .imputer import DiffusionImputer
from .predictions import Predictions
from .scores import coverage

HIDDEN = 0.05  # share of the observed values that is hidden
FEW = 20  # gaps, or values, below which their places are not predicted
SUSPICIOUS = 0.6  # area under the ROC curve from which gaps are said to depend on other columns
ROWS = 20_000  # that gaps are predicted in, at most


@dataclass(frozen=True)
class ColumnAssessment:
    """What was found about one column.

    Attributes:
        name: Of the column.
        kind: What it holds.
        missing: The share of its values that is missing.
        hidden: How many observed values were hidden and predicted.
        error: Of numbers the root mean square error of the predictions relative to the column's standard deviation, of
            categories the share of wrong ones; None if nothing was hidden.
        plain_error: The same for the mean of the column, or for its most frequent category.
        coverage90: The share of hidden numbers in their 90 % intervals; None for categories.
        gap_auc: How well other columns predict where the gaps are: 0.5 not at all, 1 perfectly; None if there are too
            few.
        gaps_depend: Whether that is more than chance explains.
    """

    name: Hashable
    kind: str
    missing: float
    hidden: int = 0
    error: float | None = None
    plain_error: float | None = None
    coverage90: float | None = None
    gap_auc: float | None = None
    gaps_depend: bool = False


def hide(frame: pd.DataFrame, seed: int, share: float = HIDDEN) -> np.ndarray:
    """Which values to hide `(n, columns)`: a share of the observed ones, where there are `FEW`, never a whole row."""
    observed = frame.notna().to_numpy()
    # not the numbers of default_rng(seed): gaps that were made with those coincide with the values to hide
    numbers = Stream(seed, "hidden values").uniform(torch.arange(len(observed)), observed.shape[1:]).numpy()
    hidden = observed & (numbers < share) & (observed.sum(0) >= FEW)
    hidden[(observed & ~hidden).sum(1) == 0] = False
    return hidden


def assess(
    imputer: DiffusionImputer, frame: pd.DataFrame, hidden: np.ndarray, draws: int, seed: int
) -> list[ColumnAssessment]:
    """Assess an imputer that was fitted to a table without its hidden values.

    Args:
        frame: The table, `(n, columns)`.
        hidden: Which of its values were hidden, `(n, columns)`.
        draws: Per hidden value.
        seed: Of the folds of the cross-validation.
    """
    shown = frame.mask(hidden)
    rows = np.flatnonzero(hidden.any(1))
    predicted = imputer.predict_gaps(shown.iloc[rows], draws) if len(rows) else {}
    found = []
    completed = imputer.encoding_.encode(imputer.sample_posterior(frame, 1)[0])
    for k, column in enumerate(imputer.encoding_.columns):
        values, gone = column.numbers(frame[column.name]), frame[column.name].isna().to_numpy()
        ours = hidden[rows[predicted[column.name].rows], k] if column.name in predicted else np.empty(0, bool)
        errors = _errors(predicted[column.name], imputer.estimate, ours, values, hidden[:, k]) if ours.any() else {}
        others = np.delete(completed, imputer.encoding_.places[k], 1)
        auc, depend = gap_auc(others, gone, seed)
        found.append(
            ColumnAssessment(column.name, column.kind, float(gone.mean()), gap_auc=auc, gaps_depend=depend, **errors)
        )
    return found


def _errors(found: Predictions, kind: str, ours: np.ndarray, values: np.ndarray, hidden: np.ndarray) -> dict[str, Any]:
    """The figures of one column.

    Args:
        found: Predictions of its gaps, hidden values and missing ones.
        kind: Of the estimate, "mean" or "median".
        ours: `(gaps,)`, which of the gaps are hidden values.
        values: `(n,)`, the column.
        hidden: `(n,)`, which of its values were hidden.
    """
    truth, rest = values[hidden], values[~hidden & ~np.isnan(values)]
    known = ~np.isnan(truth)  # a category that occurs among the hidden values alone cannot be predicted
    guess, draws, truth = found.estimate(kind)[ours][known], found.draws[:, ours][:, known], truth[known]
    if not len(truth):
        return {}
    if found.probabilities is not None:
        common = np.bincount(rest.astype(np.int64)).argmax()
        error, plain = float((guess != truth).mean()), float((common != truth).mean())
        return {"hidden": len(truth), "error": error, "plain_error": plain}
    std = float(values[~np.isnan(values)].std()) or 1.0
    error, plain = (float(np.sqrt(((g - truth) ** 2).mean())) / std for g in (guess, rest.mean()))
    return {"hidden": len(truth), "error": error, "plain_error": plain, "coverage90": coverage(draws, truth)}


def gap_auc(others: np.ndarray, gone: np.ndarray, seed: int = 0) -> tuple[float | None, bool]:
    """How well numbers `(n, m)` predict gaps `(n,)`, and whether better than by chance; (None, False) for few gaps."""
    if len(gone) > ROWS:
        rows = np.random.default_rng(seed).permutation(len(gone))[:ROWS]
        others, gone = others[rows], gone[rows]
    fewer = min(int(gone.sum()), int((~gone).sum()))
    if fewer < FEW or not others.shape[1]:
        return None, False
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    score = cross_val_predict(model, others, gone, cv=3, method="decision_function")
    auc = float(roc_auc_score(gone, score))
    error = math.sqrt(1 / (12 * fewer) + 1 / (12 * (len(gone) - fewer)))  # of an area of 0.5
    return auc, auc > max(SUSPICIOUS, 0.5 + 3 * error)
