r"""How good is a prior, judged by observations alone? Measures that need no clean data.

- χ² of held-out observations: do posterior draws explain measurements the prior was not trained on?
- predictive log-likelihood: hide some measured values, condition on the others, predict the hidden ones.
- simulated observations: push prior samples through the same operators and compare with the real y.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..data import Observations
from ..operators import Compose, Mask
from ..priors.gaussian import GaussianPrior
from ..priors.marginal import choose, measured_values, observation_laws
from ..randomness import Stream
from .distances import sliced_wasserstein
from .estimate import Estimate, clustered_mean
from .log_density import unbiased_log_density


def hide(obs: Observations, fraction: float, seed: int = 0) -> tuple[Observations, Tensor]:
    """The observations without a random part of their measured values, and which values those are, `(n, *measurement)`."""
    measured = obs.measured
    shape = tuple(obs.y.shape[1:])
    index = torch.arange(len(obs), device=obs.y.device)
    hidden = Stream(seed, "hidden values").uniform(index, shape) < fraction
    if measured is not None:
        hidden = hidden & measured
    shown = Compose(Mask(~hidden), obs.A)
    return Observations(obs.y, shown, cov=obs.cov, adaptive=obs.adaptive), hidden


def predictive_log_likelihood(draws: Tensor, obs: Observations, hidden: Tensor) -> Estimate:
    """Mean log density of the hidden values under posterior draws that did not see them, in nats per value.

    The prediction of a value is taken as Gaussian, with the mean and variance of the posterior plus the noise. For Gaussian
    posteriors the estimate has no bias, whatever the number of draws (`log_density.py`). Noise that is correlated between values
    is itself predicted from the residuals of the values that were shown.

    Args:
        draws: Posterior draws given the observations without their hidden values, shape `(k, n, *event)`, k ≥ 2.
        obs: The observations with these values.
        hidden: Which values were hidden, shape `(n, *measurement)`; see `hide`.

    Returns:
        The mean over all hidden values, and its standard error over observations and draws. NaN if nothing is hidden.
    """
    hidden = hidden.expand_as(obs.y)
    shown = ~hidden if obs.measured is None else ~hidden & obs.measured

    def predict(x: Tensor) -> Tensor:
        seen = obs.A(x)
        return (seen + obs.cov.conditional_mean(shown, torch.where(shown, obs.y - seen, 0)))[hidden]

    predicted = torch.stack([predict(x) for x in draws])
    noise = obs.cov.conditional_variances(shown, tuple(obs.y.shape[1:])).expand_as(obs.y)[hidden]
    return mean_of_hidden(unbiased_log_density(obs.y[hidden], predicted, noise), hidden)


def exact_predictive_log_likelihood(prior: GaussianPrior, obs: Observations, hidden: Tensor) -> Estimate:
    """The same for a Gaussian prior, in closed form: no draws, no Monte-Carlo error."""
    hidden = hidden.expand_as(obs.y)
    chosen = choose(measured_values(obs), obs.y[0].numel())
    log_density = torch.zeros(len(obs), hidden[0].numel(), dtype=torch.float64, device=obs.y.device)
    for rows, law in observation_laws(prior, obs, chosen):
        here = chosen[rows]
        each = torch.where(here.inside, law.predict(here.take(hidden)), 0)
        log_density[rows].scatter_add_(1, here.index, each)
    return mean_of_hidden(log_density[hidden.flatten(1)], hidden)


def mean_of_hidden(values: Tensor, hidden: Tensor) -> Estimate:
    """The mean of one value `(H,)` per hidden entry; hidden: `(n, *measurement)` with H entries that are True."""
    return clustered_mean(
        torch.zeros(hidden.shape, dtype=values.dtype, device=values.device).masked_scatter(hidden, values), hidden
    )


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
