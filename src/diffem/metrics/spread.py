r"""The spread of predictions of hidden values compared with their errors.

Given k draws of x, a hidden value with noise variance σ² is predicted k times; s² is the sample variance of these
predictions without noise, and e the error of their mean. If the true x has the distribution of the draws, then for any
distribution

    E[e² − σ²] = (1 + 1/k) E[s²],

so the ratio of both sides, summed over values, is 1. Above 1 the draws vary too little, below 1 too much. Coverage is
less sensitive: it saturates at 100 % and does not react if the noise is larger than the spread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..observations import Observations
from .evidence import _predictions
from .inputs import require_hidden


@dataclass(frozen=True)
class Spread:
    """The spread of draws compared with their errors.

    Attributes:
        ratio: Variance of the errors divided by the variance of the draws; 1 for calibrated draws.
        z: Deviation of the ratio from 1 in standard errors.
    """

    ratio: float
    z: float


def hidden_spread(draws: Tensor, obs: Observations, hidden: Tensor) -> Spread | None:
    """Compare the spread of draws given the shown values with the errors on the hidden values.

    Args:
        draws: Posterior draws given the observations without their hidden values, shape `(k, n, *event)`, k ≥ 2.
        obs: The observations with these values.
        hidden: Which values were hidden, shape `(n, *measurement)`; see `hide`.

    Returns:
        None if nothing is hidden, for fewer than two observations, or if the draws do not vary.
    """
    hidden = require_hidden(draws, obs, hidden)
    owner = hidden.flatten(1).nonzero()[:, 0]
    means, noise = (t.double() for t in _predictions(draws, obs, hidden))
    if len(owner) == 0 or len(obs) < 2:
        return None
    claimed = (1 + 1 / len(draws)) * means.var(0)
    error = (obs.y[hidden].double() - means.mean(0)).square() - noise
    # values are weighted by their information relative to the noise; the weight must not depend on the draws of the
    # value itself
    weight = 1 / (noise + claimed.mean()).square()
    sums = torch.zeros(2, len(obs), dtype=torch.float64, device=obs.y.device)
    sums[0].index_add_(0, owner, weight * error)
    sums[1].index_add_(0, owner, weight * claimed)
    total = float(sums[1].sum())
    if not total > 0:
        return None
    difference = sums[0] - sums[1]  # the mean is 0 if the draws are right; observations are independent
    spread = float(difference.std()) * math.sqrt(len(obs))
    return Spread(float(sums[0].sum()) / total, float(difference.sum()) / spread if spread > 0 else 0.0)
