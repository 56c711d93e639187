"""The quality of imputations, estimated without the missing values.

Some observed values are left out of the fit and predicted from the rest of their rows, which gives the errors and the
coverage of intervals for values that are missing at random. The gaps of a column depend on the other columns if a
logistic regression on these predicts where the gaps are (cross-validated area under the ROC curve).
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
FEW = 20  # smallest number of gaps, and of values, for a prediction of the gaps
SUSPICIOUS = 0.6  # smallest area under the ROC curve at which gaps count as dependent on other columns
ROWS = 20_000  # largest number of rows for a prediction of the gaps


@dataclass(frozen=True)
class ColumnAssessment:
    """The assessment of one column.

    Attributes:
        missing: The fraction of its values that is missing.
        hidden: The number of observed values that were hidden and predicted.
        error: For numbers, the root mean square error of the predictions divided by the column's standard deviation;
            for categories, the fraction of wrong ones; None if nothing was hidden.
        plain_error: The same for the mean of the column, or for its most frequent category.
        coverage90: The fraction of hidden numbers in their 90 % intervals; None for categories.
        gap_auc: The area under the ROC curve for the prediction of the gaps: 0.5 by chance, 1 if it is perfect; None
            for too few gaps.
        gaps_depend: Whether that area is larger than chance explains.
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
    """Choose values to hide, `(n, columns)`: a fraction of each column with `FEW` values or more, never a whole row."""
    observed = frame.notna().to_numpy()
    # not default_rng(seed): a user who made the gaps with the same seed would have the same values hidden
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
        hidden: The mask of its hidden values, `(n, columns)`.
        draws: The number of draws per hidden value.
        seed: The seed of the cross-validation.
    """
    visible = frame.mask(hidden)
    rows = np.flatnonzero(hidden.any(1))
    predicted = imputer.predict_gaps(visible.iloc[rows], draws) if len(rows) else {}
    assessments = []
    completed = imputer.encoding_.encode(imputer.sample_posterior(frame, 1)[0])
    for k, column in enumerate(imputer.encoding_.columns):
        values, missing = column.numbers(frame[column.name]), frame[column.name].isna().to_numpy()
        is_hidden = hidden[rows[predicted[column.name].rows], k] if column.name in predicted else np.empty(0, bool)
        errors = (
            _errors(predicted[column.name], imputer.estimate, is_hidden, values, hidden[:, k])
            if is_hidden.any()
            else {}
        )
        others = np.delete(completed, imputer.encoding_.places[k], 1)
        auc, depends = gap_auc(others, missing, seed)
        assessments.append(
            ColumnAssessment(
                column.name, column.kind, float(missing.mean()), gap_auc=auc, gaps_depend=depends, **errors
            )
        )
    return assessments


def _errors(
    predictions: Predictions, kind: str, is_hidden: np.ndarray, values: np.ndarray, hidden: np.ndarray
) -> dict[str, Any]:
    """Compute the errors of one column.

    Args:
        predictions: Predictions of all its gaps: hidden values and missing ones.
        kind: The estimate, "mean" or "median".
        is_hidden: `(gaps,)`. Which of the gaps are hidden values.
        values: `(n,)`. The column.
        hidden: `(n,)`. The mask of its hidden values.
    """
    truth, rest = values[hidden], values[~hidden & ~np.isnan(values)]
    predictable = ~np.isnan(truth)  # a category that occurs only among the hidden values cannot be predicted
    guess, draws = predictions.estimate(kind)[is_hidden][predictable], predictions.draws[:, is_hidden][:, predictable]
    truth = truth[predictable]
    if not len(truth):
        return {}
    if predictions.probabilities is not None:
        common = np.bincount(rest.astype(np.int64)).argmax()
        error, plain = float((guess != truth).mean()), float((common != truth).mean())
        return {"hidden": len(truth), "error": error, "plain_error": plain}
    std = float(values[~np.isnan(values)].std()) or 1.0
    error, plain = (float(np.sqrt(((g - truth) ** 2).mean())) / std for g in (guess, rest.mean()))
    return {"hidden": len(truth), "error": error, "plain_error": plain, "coverage90": coverage(draws, truth)}


def gap_auc(others: np.ndarray, missing: np.ndarray, seed: int = 0) -> tuple[float | None, bool]:
    """The area under the ROC curve for gaps `(n,)` predicted from numbers `(n, m)`, and whether chance is excluded."""
    if len(missing) > ROWS:
        rows = np.random.default_rng(seed).permutation(len(missing))[:ROWS]
        others, missing = others[rows], missing[rows]
    fewer = min(int(missing.sum()), int((~missing).sum()))
    if fewer < FEW or not others.shape[1]:
        return None, False
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200))
    score = cross_val_predict(model, others, missing, cv=3, method="decision_function")
    auc = float(roc_auc_score(missing, score))
    error = math.sqrt(1 / (12 * fewer) + 1 / (12 * (len(missing) - fewer)))  # standard error of an area of 0.5
    return auc, auc > max(SUSPICIOUS, 0.5 + 3 * error)
