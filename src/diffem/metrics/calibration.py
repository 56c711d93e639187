"""Do posterior draws know how wrong they are? Coverage and ranks, where the truth is known."""

from __future__ import annotations

import torch
from torch import Tensor


def coverage(draws: Tensor, truth: Tensor, level: float = 0.9) -> float:
    """Fraction of entries of the truth inside the central interval of the draws; draws `(k, n, *event)`, truth `(n, *event)`.

    The interval runs between the mean ± z standard deviations of the draws, z the normal quantile of the level.
    """
    z = float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + level) / 2)))
    return float(((truth - draws.mean(0)).abs() <= z * draws.std(0)).double().mean())


def ranks(draws: Tensor, truth: Tensor) -> Tensor:
    """The rank of every entry of the truth among its draws, 0 … k, `(n, *event)`: uniform when the draws are calibrated."""
    return (draws < truth).sum(0)
