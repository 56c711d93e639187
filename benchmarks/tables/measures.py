"""How good imputed values are: errors of the estimates, and what draws tell about their uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from diffem.tables.scores import coverage, crps

LEAST = 1e-3  # probability of a category that a method excludes, in its log-loss


@dataclass
class Imputation:
    """A table `(n, columns)` as a method completes it, numbers in standardised units.

    Attributes:
        mean: The estimate with the least squared error.
        median: The estimate with the least absolute error; the same for a method with a single estimate.
        draws: `(k, n, columns)`; None for a method with a single estimate.
        probabilities: Per column of categories `(n, categories)`.
    """

    mean: np.ndarray
    median: np.ndarray
    draws: np.ndarray | None = None
    probabilities: dict[int, np.ndarray] = field(default_factory=dict)

    def completed(self, truth: np.ndarray, gone: np.ndarray, categorical: np.ndarray) -> np.ndarray:
        """The whole table, `(n, columns)`, with the most probable category in gaps of columns of categories."""
        table = np.where(gone, self.mean, truth)
        for k in np.flatnonzero(categorical):
            table[gone[:, k], k] = self.probabilities[k].argmax(1)[gone[:, k]]
        return table


def measure(imputed: Imputation, truth: np.ndarray, gone: np.ndarray, categorical: np.ndarray) -> dict[str, float]:
    """Measures over the missing values, all columns of numbers together and all columns of categories together."""
    numeric = gone & ~categorical
    x = truth[numeric]
    figures = {
        "rmse": float(np.sqrt(((imputed.mean[numeric] - x) ** 2).mean())),
        "mae": float(np.abs(imputed.median[numeric] - x).mean()),
    }
    if imputed.draws is None:
        figures["crps"] = float(np.abs(imputed.mean[numeric] - x).mean())  # the CRPS of a single estimate
    else:
        draws = imputed.draws[:, numeric]
        figures |= {"crps": crps(draws, x), "coverage90": coverage(draws, x)}
    if (gone & categorical).any():
        figures |= _categories(imputed, truth, gone, categorical)
    return figures


def _categories(imputed: Imputation, truth: np.ndarray, gone: np.ndarray, categorical: np.ndarray) -> dict[str, float]:
    right, losses = [], []
    for k in np.flatnonzero(categorical & gone.any(0)):
        rows = gone[:, k]
        codes = truth[rows, k].astype(np.int64)
        p = np.maximum(imputed.probabilities[k][rows], LEAST)
        p = p / p.sum(1, keepdims=True)
        right.append(p.argmax(1) == codes)
        losses.append(-np.log(p[np.arange(len(codes)), codes]))
    return {"accuracy": float(np.concatenate(right).mean()), "log_loss": float(np.concatenate(losses).mean())}
