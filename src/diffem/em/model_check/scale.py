r"""Are the units consistent? Three mistakes of scale that the observations and the Gaussian start reveal.

- Noise larger than the data. With μ the mean of x, E‖y − Aμ‖² in units of the noise is 1 + tr(AΣAᵀΣ_y⁻¹)/m per measured
  value, which is at least 1 for any distribution of x. A smaller value means that the stated noise level is too large.
- Noise below the rounding. If all values are multiples of a step q, rounding alone has a standard deviation of q/√12.
- Columns with different units. The network is trained down to σ_min times one scale for all entries of x, and cannot
  learn a column that varies by less than that.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...metrics.estimate import Estimate, clustered_mean
from ...observations import Observations
from ...priors import GaussianPrior

ROUNDED = 0.01  # largest deviation of a rounded value from a multiple of the step, in steps
REPEATED = 2  # smallest number of values per distinct value in rounded data
VALUES = 1 << 18  # largest number of measured values for the tests of single values


def deviation(obs: Observations, prior: GaussianPrior) -> Estimate:
    """Return the mean squared deviation of the measured values from Aμ in units of the noise."""
    mean = prior.mean.to(obs.y).expand(len(obs), *prior.event_shape)
    return clustered_mean(obs.chi2(mean).unsqueeze(1))


def rounding_step(obs: Observations) -> float | None:
    """Return the step that all measured values are multiples of; None if they are not rounded, or all equal."""
    y = some_values(obs)
    distinct = y.unique()
    if len(distinct) < 2 or len(y) < REPEATED * len(distinct):
        return None
    step = float(distinct.diff().min())
    places = (distinct - distinct[0]) / step
    return step if bool(((places - places.round()).abs() < ROUNDED).all()) else None


def some_values(obs: Observations) -> Tensor:
    """Return the first `VALUES` measured values."""
    measured = obs.measured
    y = obs.y if measured is None else obs.y[measured.expand_as(obs.y)]
    return y.flatten()[:VALUES].double()


def smallest_std(obs: Observations) -> Tensor:
    """Return the smallest noise level of each entry of y over the observations, `(*measurement)`."""
    shape = tuple(obs.y.shape[1:])
    return obs.cov.diagonal(shape).expand(-1, *shape).amin(0).sqrt()


def narrow_columns(prior: GaussianPrior, obs: Observations, sigma_min: float) -> list[int]:
    """Return the columns, counted from 0, that vary by less than σ_min times the scale and by more than their noise."""
    std = prior.covariance().diagonal(prior.event_shape).flatten().sqrt()
    noise = smallest_std(obs)
    if noise.shape != std.shape:
        noise = noise.min()
    return torch.nonzero((std < sigma_min * prior.scale) & (std > noise)).flatten().tolist()
