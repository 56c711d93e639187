r"""Evaluation of a prior by observations alone, without clean data.

- χ² of held-out observations: whether posterior draws fit measurements the prior was not trained on.
- predictive log-likelihood: hide some measured values, condition on the others, predict the hidden ones.
- simulated observations: apply the same operators to prior samples and compare with the real y.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.randomness import Stream
from ..core.shapes import promoted
from ..observations import Observations
from ..observations.features import require_linear_gaussian
from ..operators import Channel, Compose, Mask
from ..priors.gaussian import GaussianPrior
from ..priors.marginal import choose, measured_values, observation_laws
from .calibration import covered
from .distances import sliced_wasserstein
from .estimate import Estimate, clustered_mean
from .inputs import require_hidden
from .log_density import unbiased_log_density


def hide(obs: Observations, fraction: float, seed: int = 0) -> tuple[Observations, Tensor]:
    """Hide a random part of the measured values. Returns the observations and the mask `(n, *measurement)`.

    Values that are measured together, such as the channels of a pixel, the lines of k-space and the two parts of a
    complex number, are hidden together, so that the remaining observation is of the same kind.
    """
    require_linear_gaussian(obs, "hiding measured values", "Use metrics.simulation_score for predictions")
    if not isinstance(fraction, int | float) or not 0 <= fraction <= 1:
        raise InputError(f"the fraction of hidden values must lie in [0, 1], got {fraction!r}")
    measured = obs.measured
    shape = tuple(obs.y.shape[1:]) if measured is None else tuple(measured.shape[1:])
    if obs.A.complex_output:
        shape = (*shape[:-1], 1)
    elif len(shape) == 3 and (measured is None or bool((measured == measured[:, :1]).all())):
        shape = (1, *shape[1:])  # images whose pixels are measured in all channels or in none
    index = torch.arange(len(obs), device=obs.y.device)
    hidden = (Stream(seed, "hidden values").uniform(index, shape) < fraction).expand(obs.y.shape)
    if measured is not None:
        hidden = hidden & measured
    visible = Compose(Mask(~hidden), obs.A)
    return Observations(obs.y, visible, cov=obs.cov, adaptive=obs.adaptive), hidden


@in_default_modes
def predictive_log_likelihood(draws: Tensor, obs: Observations, hidden: Tensor) -> Estimate:
    """Mean log density of the hidden values under posterior draws that did not see them, in nats per value.

    The prediction of a value is approximated by a Gaussian, with the mean and variance of the posterior plus the noise.
    For Gaussian posteriors the estimate has no bias for any number of draws (`log_density.py`). Noise that is
    correlated between values is itself predicted from the residuals of the values that were not hidden.

    Args:
        draws: Posterior draws given the observations without their hidden values, shape `(k, n, *event)`, k ≥ 2; with
            fewer than 4 the error of the estimate is large, mostly positive, and not described by its standard error.
        obs: The observations with these values.
        hidden: Which values were hidden, shape `(n, *measurement)`; see `hide`.

    Returns:
        The mean over all hidden values, and its standard error over observations and draws. NaN if nothing is hidden.
    """
    return clustered_mean(hidden_log_densities(draws, obs, hidden), hidden)


@in_default_modes
def exact_predictive_log_likelihood(prior: GaussianPrior, obs: Observations, hidden: Tensor) -> Estimate:
    """The predictive log-likelihood of a Gaussian prior in closed form, without Monte-Carlo error.

    The arguments are those of `predictive_log_likelihood`, without draws.
    """
    return clustered_mean(exact_hidden_log_densities(prior, obs, hidden), hidden)


@in_default_modes
def hidden_coverage(draws: Tensor, obs: Observations, hidden: Tensor, level: float = 0.9, seed: int = 0) -> Estimate:
    """Fraction of hidden values in the central interval of their prediction; `level` if posterior and noise are right.

    It uses the rank of the value among draws of its prediction with noise, see `coverage`. The arguments are those of
    `predictive_log_likelihood`.
    """
    hidden = require_hidden(draws, obs, hidden)
    means, variance = _predictions(draws, obs, hidden)
    index = torch.arange(len(obs), device=obs.y.device)
    stream, shape = Stream(seed, "predictive noise"), tuple(obs.y.shape[1:])
    noise = [stream.normal(index, shape, draw=torch.full_like(index, d))[hidden] for d in range(len(draws))]
    predicted = means + variance.sqrt() * torch.stack(noise).to(means)
    return clustered_mean(_spread(covered(predicted, obs.y[hidden], level), hidden), hidden)


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
    r"""Compare the spread of draws given the visible values with the errors on the hidden values.

    A hidden value with noise variance σ² is predicted by k draws; s² is the sample variance of these predictions
    without noise, and e the error of their mean. If the true x has the distribution of the draws, whatever that is,

        E[e² − σ²] = (1 + 1/k) E[s²],

    so the ratio of both sides, summed over values, is 1. Above 1 the draws vary too little, below 1 too much. Coverage
    is less sensitive: it saturates at 100 % and does not react if the noise is larger than the spread.

    The arguments are those of `predictive_log_likelihood`.

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


@in_default_modes
def hidden_log_densities(draws: Tensor, obs: Observations, hidden: Tensor) -> Tensor:
    """Unbiased log density of every hidden value from draws, `(n, *measurement)`; 0 for other values."""
    hidden = require_hidden(draws, obs, hidden)
    means, variance = _predictions(draws, obs, hidden)
    return _spread(unbiased_log_density(obs.y[hidden], means, variance), hidden)


@in_default_modes
def exact_hidden_log_densities(prior: GaussianPrior, obs: Observations, hidden: Tensor) -> Tensor:
    """Log density of every hidden value under a Gaussian prior, in closed form, `(n, *measurement)`; 0 elsewhere."""
    hidden = require_hidden(None, obs, hidden)
    if not isinstance(prior, GaussianPrior):
        raise InputError(f"the exact prediction is that of a GaussianPrior, got {type(prior).__name__}")
    chosen = choose(measured_values(obs), obs.y[0].numel())
    log_density = torch.zeros(len(obs), hidden[0].numel(), dtype=torch.float64, device=obs.y.device)
    for rows, law in observation_laws(prior, obs, chosen):
        here = chosen[rows]
        log_density[rows].scatter_add_(1, here.index, torch.where(here.inside, law.predict(here.take(hidden[rows])), 0))
    return log_density.reshape(hidden.shape).where(hidden, 0)


def _predictions(draws: Tensor, obs: Observations, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Conditional means of the hidden values given draw and visible values, `(k, H)`, and variances, `(H,)`.

    If the noise is correlated between values, the residuals of the visible values predict that of the hidden ones.
    """
    visible = measured_values(obs).reshape(obs.y.shape) & ~hidden

    def mean(x: Tensor) -> Tensor:
        seen = obs.A(promoted(x, obs.y))
        return (seen + obs.cov.conditional_mean(visible, torch.where(visible, obs.y - seen, 0)))[hidden]

    variance = obs.cov.conditional_variances(visible, tuple(obs.y.shape[1:])).expand_as(obs.y)[hidden]
    return torch.stack([mean(x) for x in draws]), variance


def _spread(values: Tensor, hidden: Tensor) -> Tensor:
    """Scatter one value `(H,)` per hidden entry to its position; 0 elsewhere."""
    return torch.zeros(hidden.shape, dtype=values.dtype, device=values.device).masked_scatter(hidden, values)


@in_default_modes
def simulate(x: Tensor, obs: Observations, seed: int = 0) -> Tensor:
    """Simulate observations of samples x `(n, *event)` with the operators and noise of `obs`, `(n, *measurement)`."""
    if x.shape != (len(obs), *obs.x_shape):
        raise InputError(f"needed: one sample per observation, {(len(obs), *obs.x_shape)}, got {tuple(x.shape)}")
    index = torch.arange(len(obs), device=obs.y.device)
    if isinstance(obs.A, Channel):
        return obs.A.simulate(promoted(x, obs.y), Stream(seed, "simulated noise"), index)
    z = Stream(seed, "simulated noise").normal(index, tuple(obs.y.shape[1:]), dtype=obs.y.dtype)
    y = obs.A(promoted(x, obs.y)) + obs.cov.sqrt(z)
    measured = obs.measured
    return y if measured is None else torch.where(measured, y, 0)


@in_default_modes
def observation_distance(
    samples: Callable[[int], Tensor] | Tensor, obs: Observations, *, slices: int = 256, seed: int = 0
) -> float:
    """Sliced distance between Aᵀy of real and of simulated observations; for a channel, between features of y.

    samples: one prior sample per observation.
    """
    x = samples(len(obs)) if callable(samples) else samples
    back = obs.A.features if isinstance(obs.A, Channel) else obs.A.adjoint
    real, fake = back(obs.y), back(simulate(x, obs, seed))
    return sliced_wasserstein(real, fake, slices=slices, seed=seed)
