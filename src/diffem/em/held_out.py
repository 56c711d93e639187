"""The held-out evaluation: do draws fit held-out observations, and do they predict hidden values?

For a channel: do measurements that are simulated from draws and from prior samples agree with the real ones?
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..linalg import dot
from ..metrics.estimate import clustered_mean
from ..metrics.evidence import (
    exact_hidden_log_densities,
    hidden_coverage,
    hidden_log_densities,
    hidden_spread,
    hide,
)
from ..metrics.simulated import simulated_distance, simulated_fit, simulation_scores
from ..observations import Observations
from ..observations.last_levels import last_levels
from ..operators import Channel
from ..priors import GaussianPrior, Prior
from .channel_posterior import draws_conditionally

LEAST = 16  # observations that a comparison of distributions needs
EXACT_VALUES = 1024  # measured values per observation up to which a Gaussian's predictions are computed in closed form


def measure_held_out(
    prior: Prior, obs: Observations, draw: Callable[[Observations], Tensor], hidden_share: float, seed: int
) -> dict[str, Any]:
    """Return the metrics of a prior on observations that it was not trained on.

    Args:
        obs: Observations with at least one measured value each.
        draw: Returns posterior draws `(k, n, *event)` for observations.
        hidden_share: The fraction of the measured values that is hidden and predicted.
        seed: The seed of the choice of hidden values.
    """
    # exact draws have no diffusion noise; other draws end with a denoising
    levels = torch.zeros(len(obs)) if prior.is_exact else last_levels(obs, prior.sigma_min)
    metrics: dict[str, Any] = explained(draw(obs), obs, levels)
    visible, hidden = hide(obs, hidden_share, seed)
    if not bool(hidden.any()):
        return metrics
    x = draw(visible)
    if isinstance(prior, GaussianPrior) and int(obs.counts().max()) <= EXACT_VALUES:
        log_density = exact_hidden_log_densities(prior, obs, hidden)
    else:
        log_density = hidden_log_densities(x, obs, hidden)
    predicted, inside = clustered_mean(log_density, hidden), hidden_coverage(x, obs, hidden, seed=seed)
    each = log_density.flatten(1).sum(1) * (len(obs) / int(hidden.sum()))  # their mean is the predictive log-likelihood
    metrics |= {
        "predictive_log_likelihood": float(predicted),
        "predictive_each": each.tolist(),
        "hidden_coverage90": float(inside),
        "hidden_coverage90_error": _least_error(len(x), int(hidden.sum())),
    }
    spread = hidden_spread(x, obs, hidden)
    if spread is not None:
        metrics |= {"hidden_spread": spread.ratio, "hidden_spread_z": spread.z}
    if math.isfinite(predicted.standard_error):  # at least two observations have a hidden value
        metrics["predictive_error"] = predicted.standard_error
        metrics["hidden_coverage90_error"] = max(metrics["hidden_coverage90_error"], inside.standard_error)
    return metrics


@torch.no_grad()
def measure_held_out_channel(
    prior: Prior, obs: Observations, draw: Callable[[Observations], Tensor], samples: Tensor, seed: int
) -> dict[str, Any]:
    """Return the metrics of a prior on observations of a channel that it was not trained on.

    Args:
        draw: Returns posterior draws `(k, n, *event)` for observations.
        samples: (m, *event). Samples of the prior.
        seed: The seed of the simulations.
    """
    each = simulation_scores(samples, obs, seed)
    metrics: dict[str, Any] = {"simulation_score": float(each.mean()), "simulation_each": each.tolist()}
    if len(each) > 1:
        metrics["simulation_error"] = float(each.std()) / len(each) ** 0.5
    if not draws_conditionally(prior, obs):
        return metrics
    x = draw(obs)
    if cast(Channel, obs.A).random:
        fit = simulated_fit(x, obs, seed)
        metrics |= {"heldout_chi2": fit.ratio, "expected_chi2": 1.0, "heldout_chi2_z": fit.z}
    if len(obs) >= LEAST:
        metrics["simulated_distance"], metrics["halves_distance"] = simulated_distance(x, obs, seed)
    return metrics


def explained(x: Tensor, obs: Observations, levels: Tensor) -> dict[str, float]:
    """Return χ² of posterior draws x `(k, n, *event)` relative to its median, and the significance of its deviation.

    The residual of a draw from the true posterior is distributed like the noise, so χ² of m values has the χ²_m
    distribution, whatever the prior. The probabilities P(χ²_m ≤ observed) are uniform on [0, 1]. Their mean over the
    observations has a variance of at most 1/(12 n), and `heldout_chi2_z` is its distance from ½ in these standard
    deviations.
    """
    counts, expected = obs.counts().double(), expected_chi2(obs, levels)
    chi2 = torch.stack([obs.chi2(draw) for draw in x]).double().nan_to_num(torch.inf)
    below = torch.special.gammainc(counts / 2, (counts * chi2 / (2 * expected)).clamp(max=1e300))
    return {
        "heldout_chi2": float((chi2 / chi2_median(counts)).median()),
        "expected_chi2": float(expected.mean()),
        "heldout_chi2_z": float(below.mean() - 0.5) * math.sqrt(12 * len(obs)),
    }


def expected_chi2(obs: Observations, levels: Tensor) -> Tensor:
    """Return the expected χ² per measured value of correct draws, `(n,)`: 1, reduced by the last denoising at level σ.

    The last denoising returns a mean instead of a draw, which halves the χ² of a value whose noise is as small as σ.
    The expected value is tr Σ_y(Σ_y + σ² I)⁻¹ divided by the number of values. The trace is estimated with one vector
    of random signs per observation, which is exact for independent noise.

    Args:
        levels: `(n,)`. σ of each observation, 0 for exact draws.
    """
    index = torch.arange(len(obs), device=obs.y.device)
    signs = Stream(0, "expected chi2").uniform(index, tuple(obs.y.shape[1:])) < 0.5
    z = torch.where(signs, -1, 1).to(obs.y)
    z = z if obs.measured is None else torch.where(obs.measured, z, 0)
    noise, variance = obs.noise, levels.square().to(obs.y)
    shared = bool((variance == variance[0]).all())  # one number keeps one factorisation for all observations
    total = noise.plus(float(variance[0]) if shared else variance)
    return dot(z, noise.matvec(total.solve(z))).double() / obs.counts()


def chi2_median(counts: Tensor) -> Tensor:
    """Return the median of χ²_m / m for counts m `(n,)`, by bisection: 0.45 for one value, 1 for many."""
    m, place = counts.double().unique(return_inverse=True)
    low, high = torch.zeros_like(m), torch.full_like(m, 2.0)
    for _ in range(60):
        middle = (low + high) / 2
        above = torch.special.gammainc(m / 2, m * middle / 2) > 0.5
        low, high = torch.where(above, low, middle), torch.where(above, middle, high)
    return high[place]


def _least_error(draws: int, values: int) -> float:
    """Return the standard error of the coverage for calibrated draws; the estimate from few values may be 0."""
    tail = 0.05 * (draws + 1)
    weights = (torch.clamp(torch.arange(draws + 2).double(), tail, draws + 1 - tail)).diff()
    return float(weights.std(correction=0)) / math.sqrt(values)
