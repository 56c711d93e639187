"""How well draws predict known values: the continuous ranked probability score, and the coverage of intervals."""

from __future__ import annotations

import numpy as np
import torch

from .. import metrics


def crps(draws: np.ndarray, x: np.ndarray) -> float:
    """The continuous ranked probability score of draws `(k, n)` for x `(n,)`, without bias from the number of draws.

    The mean over i of E|draw − x| − ½ E|draw − another draw|, in the units of x; the absolute error if all draws are
    equal.
    """
    scores = metrics.crps(*(torch.from_numpy(np.asarray(a, float)).unsqueeze(-1) for a in (draws, x)))
    return float(scores.mean())


def coverage(draws: np.ndarray, x: np.ndarray, level: float = 0.9) -> float:
    """The share of values x `(n,)` in the central part of draws `(k, n)`, by ranks: `level` if they are right."""
    return float(covered(draws, x, level).mean())


def covered(draws: np.ndarray, x: np.ndarray, level: float = 0.9) -> np.ndarray:
    """How far each of the values x `(n,)` lies in the central part of draws `(k, n)`, from 0 to 1, by ranks.

    It is exact for any k and with ties. The rank of x among k draws is uniform on 0 … k, and counts by the share of
    [rank, rank + 1]/(k + 1) that lies in the central part. Of draws that equal x, every number may count as below it.
    """
    k = len(draws)
    edges = np.clip(np.arange(k + 2) / (k + 1), (1 - level) / 2, (1 + level) / 2)
    total = np.concatenate([[0.0], (np.diff(edges) * (k + 1)).cumsum()])  # weights of the ranks 0 … k, summed
    below, equal = (draws < x).sum(0), (draws == x).sum(0)
    return (total[below + equal + 1] - total[below]) / (equal + 1)
