"""Scores of draws for known values: the continuous ranked probability score, and the coverage of intervals."""

from __future__ import annotations

import numpy as np
import torch

from ..metrics import calibration


def crps(draws: np.ndarray, x: np.ndarray) -> float:
    """The mean continuous ranked probability score of draws `(k, n)` for x `(n,)`, in the units of x."""
    scores = calibration.crps(*(torch.from_numpy(np.asarray(a, float)).unsqueeze(-1) for a in (draws, x)))
    return float(scores.mean())


def coverage(draws: np.ndarray, x: np.ndarray, level: float = 0.9) -> float:
    """The fraction of values x `(n,)` in central intervals of draws `(k, n)`; equal to `level` for calibrated draws."""
    return float(covered(draws, x, level).mean())


def covered(draws: np.ndarray, x: np.ndarray, level: float = 0.9) -> np.ndarray:
    """The covered share, 0 … 1, of each of the values x `(n,)` in central intervals of draws `(k, n)`."""
    return calibration.covered(torch.from_numpy(draws), torch.from_numpy(x), level).numpy()
