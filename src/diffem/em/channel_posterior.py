"""Posteriors for observations of a channel, by what the prior of the previous lap can do.

- A conditional network that was trained for the channel: its draws.
- The Gaussian start: exact draws given the linearised channel (`priors/fit_channel.py`).
- Any other prior that a run starts from: samples of the prior, independent of y. The lap trains a network on them and
  on measurements simulated from them, and this network makes the draws of the next lap.
"""

from __future__ import annotations

from typing import Any, cast

from ..observations import Observations
from ..operators import Channel
from ..posterior import Posterior
from ..posterior.unconditional import Unconditional
from ..priors import GaussianPrior, Prior
from ..priors.fit_channel import linearised


def channel_posterior(prior: Prior, obs: Observations, *, own: bool) -> Posterior:
    """Condition a prior on observations of a channel.

    Args:
        own: Whether these are observations of the run. Others need a network that was trained for them.
    """
    conditioned: Any
    if own and is_gaussian_start(prior, obs):
        conditioned = prior.posterior(linearised(obs, cast(GaussianPrior, prior)))
    elif own and not draws_conditionally(prior, obs):
        conditioned = Unconditional(prior, obs)
    else:
        conditioned = prior.posterior(obs, method="conditional", check=not own)
    return cast(Posterior, conditioned)


def draws_conditionally(prior: Prior, obs: Observations) -> bool:
    """Whether draws of this prior depend on y: it has a conditional network, or is a Gaussian start."""
    return is_gaussian_start(prior, obs) or prior.supports(obs)


def is_gaussian_start(prior: Prior, obs: Observations) -> bool:
    """Whether the prior is Gaussian and the channel has an estimate of x to linearise."""
    first = obs[:1]
    return isinstance(prior, GaussianPrior) and cast(Channel, first.A).estimate(first.y) is not None
