"""Do posterior draws know how wrong they are? Coverage, ranks and the continuous ranked probability score, where the truth is known."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InputError


def coverage(draws: Tensor, truth: Tensor, level: float = 0.9) -> float:
    """Fraction of entries of the truth inside the central interval of the draws; draws `(k, n, *event)`, truth `(n, *event)`.

    The interval runs between the mean ± z standard deviations of the draws, z the normal quantile of the level.
    """
    z = float(torch.distributions.Normal(0.0, 1.0).icdf(torch.tensor((1 + level) / 2)))
    return float(((truth - draws.mean(0)).abs() <= z * draws.std(0)).double().mean())


def predictive_coverage(draws: Tensor, truth: Tensor, level: float = 0.9) -> Tensor:
    """The same per observation, `(n,)`, with an interval widened for few draws: mean ± t √(1 + 1/k) standard deviations.

    t is the quantile of Student's distribution with k − 1 degrees of freedom: the level is met exactly by Gaussian draws of any number k.
    """
    k = len(draws)
    if k < 2:
        raise InputError(f"an interval needs at least 2 draws, got {k}")
    width = student_quantile((1 + level) / 2, k - 1) * math.sqrt(1 + 1 / k)
    return ((truth - draws.mean(0)).abs() <= width * draws.std(0)).double().flatten(1).mean(1)


def student_quantile(probability: float, degrees: int) -> float:
    """Where the distribution function of Student's t reaches a probability above one half; by quadrature of the density."""
    # t = √ν tan θ makes the density cos^{ν−1} θ on a bounded interval
    theta = torch.linspace(0, math.pi / 2, 200_001, dtype=torch.float64)
    mass = torch.cumulative_trapezoid(theta.cos() ** (degrees - 1), theta)
    place = int(torch.searchsorted(mass, mass[-1] * (2 * probability - 1)))
    return math.sqrt(degrees) * math.tan(float(theta[place + 1]))


def crps(draws: Tensor, truth: Tensor) -> Tensor:
    r"""The continuous ranked probability score per observation, `(n,)`, averaged over entries: small for draws that are close *and* honest.

    E|x − truth| − ½ E|x − x'|, both means without bias for k ≥ 2 draws `(k, n, *event)`; in the units of x.
    """
    k = len(draws)
    if k < 2:
        raise InputError(f"the score needs at least 2 draws, got {k}")
    near = (draws - truth).abs().mean(0)
    # Σ_ij |x_i − x_j| from the sorted draws: the i-th is added 2i − k − 1 times, twice
    weights = 2 * torch.arange(1, k + 1, dtype=draws.dtype, device=draws.device) - k - 1
    apart = torch.einsum("k,k...->...", weights, draws.sort(0).values) * 2 / (k * (k - 1))
    return (near - apart / 2).flatten(1).mean(1)


def ranks(draws: Tensor, truth: Tensor) -> Tensor:
    """The rank of every entry of the truth among its draws, 0 … k, `(n, *event)`: uniform when the draws are calibrated."""
    return (draws < truth).sum(0)
