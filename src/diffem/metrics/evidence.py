r"""How good is a prior, judged by observations alone? Measures that need no clean data.

- χ² of held-out observations: do posterior draws explain measurements the prior was not trained on?
- predictive log-likelihood: hide some measured values, condition on the others, predict the hidden ones.
- simulated observations: push prior samples through the same operators and compare with the real y.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..data import Observations
from ..operators import Compose, Mask
from ..randomness import Stream
from .distances import sliced_wasserstein


def hide(obs: Observations, fraction: float, seed: int = 0) -> tuple[Observations, Tensor]:
    """The observations without a random part of their measured values, and which values those are, `(n, *measurement)`."""
    measured = obs.measured
    shape = tuple(obs.y.shape[1:])
    index = torch.arange(len(obs), device=obs.y.device)
    hidden = Stream(seed, "hidden values").uniform(index, shape) < fraction
    if measured is not None:
        hidden = hidden & measured
    shown = Compose(Mask(~hidden), obs.A)
    return Observations(obs.y, shown, cov=obs.cov), hidden


def predictive_log_likelihood(draws: Tensor, obs: Observations, hidden: Tensor) -> float:
    """Mean log density of the hidden values under draws that did not see them; draws: `(k, n, *event)`.

    The predictive of a value is taken as Gaussian with the draws' mean and variance plus the noise.
    """
    k = len(draws)
    predicted = torch.stack([obs.A(x) for x in draws])
    variance = predicted.var(0) * (1 + 1 / k) + obs.cov.diagonal(tuple(obs.y.shape[1:]))
    error = (obs.y - predicted.mean(0)).square() / variance
    log_density = -0.5 * (error + (2 * math.pi * variance).log())
    return float(log_density[hidden.expand_as(log_density)].double().mean())


def simulate(x: Tensor, obs: Observations, seed: int = 0) -> Tensor:
    """Observations of samples x `(n, *event)` under the operators and noise of `obs`, `(n, *measurement)`."""
    index = torch.arange(len(obs), device=obs.y.device)
    z = Stream(seed, "simulated noise").normal(index, tuple(obs.y.shape[1:]), dtype=obs.y.dtype)
    y = obs.A(x) + obs.cov.sqrt(z)
    measured = obs.measured
    return y if measured is None else torch.where(measured, y, 0)


def observation_distance(
    samples: Callable[[int], Tensor] | Tensor, obs: Observations, *, slices: int = 256, seed: int = 0
) -> float:
    """Sliced distance between Aᵀy of real observations and of simulated ones, `samples` being prior samples, one per observation."""
    x = samples(len(obs)) if callable(samples) else samples
    real, fake = obs.A.adjoint(obs.y), obs.A.adjoint(simulate(x, obs, seed))
    return sliced_wasserstein(real, fake, slices=slices, seed=seed)
