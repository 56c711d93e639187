r"""Do the units fit together? Three mistakes of scale that the observations and the Gaussian start show.

- Noise larger than the data. With μ the mean of x, E‖y − Aμ‖² in units of the noise is 1 + tr(AΣAᵀΣ_y⁻¹)/m per
  measured value, at least 1 whatever the law of x: less means that the noise was stated in larger units than y is in.
- Noise below the rounding. If all values are multiples of a step q, rounding alone has a standard deviation of q/√12.
- Columns in units of their own. The network is trained down to σ_min times one scale for all entries of x, and a column
  that varies by less than that is noise to it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...metrics.estimate import Estimate, clustered_mean
from ...observations import Observations
from ...priors import GaussianPrior

ROUNDED = 0.01  # deviation from multiples of the step that counts as none, in steps
REPEATED = 2  # values per distinct value that continuous noise does not give
VALUES = 1 << 18  # measured values looked at for a step


def deviation(obs: Observations, prior: GaussianPrior) -> Estimate:
    """The mean squared deviation of measured values from Aμ in units of the noise, with its standard error."""
    mean = prior.mean.to(obs.y).expand(len(obs), *prior.event_shape)
    return clustered_mean(obs.chi2(mean).unsqueeze(1))


def rounding_step(obs: Observations) -> float | None:
    """The step that all measured values are multiples of; None if they are not rounded, or all the same."""
    measured = obs.measured
    y = obs.y if measured is None else obs.y[measured.expand_as(obs.y)]
    y = y.flatten()[:VALUES].double()
    distinct = y.unique()
    if len(distinct) < 2 or len(y) < REPEATED * len(distinct):
        return None
    step = float(distinct.diff().min())
    places = (distinct - distinct[0]) / step
    return step if bool(((places - places.round()).abs() < ROUNDED).all()) else None


def smallest_std(obs: Observations) -> Tensor:
    """The smallest standard deviation of the noise of each value over the observations, `(*measurement)`."""
    shape = tuple(obs.y.shape[1:])
    return obs.cov.diagonal(shape).expand(-1, *shape).amin(0).sqrt()


def narrow_columns(prior: GaussianPrior, obs: Observations, sigma_min: float) -> list[int]:
    """The columns of a vector, counted from 0, that vary by less than σ_min times the scale, and by more than their noise."""
    std = prior.covariance().diagonal(prior.event_shape).flatten().sqrt()
    noise = smallest_std(obs)
    if noise.shape != std.shape:
        noise = noise.min()
    return torch.nonzero((std < sigma_min * prior.scale) & (std > noise)).flatten().tolist()
