"""The held-out evaluation for observations of a channel: do draws fit y, and do samples predict y?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from ..metrics.simulated import simulated_distance, simulated_fit, simulation_scores
from ..observations import Observations
from ..operators import Channel
from ..priors import Prior
from .channel_posterior import draws_conditionally

LEAST = 16  # observations that a comparison of distributions needs


@torch.no_grad()
def measure_held_out_channel(
    prior: Prior, obs: Observations, draw: Callable[[Observations], Tensor], samples: Tensor, seed: int
) -> dict[str, Any]:
    """Return the metrics of a prior on observations of a channel that it was not trained on.

    Args:
        prior: The prior.
        obs: The observations.
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
