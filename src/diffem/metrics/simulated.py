r"""Checks of draws and samples by simulating observations again, for channels, which have no likelihood.

- `simulated_fit`: do draws fit their own y? If x is a draw from the true posterior given y, then y and two measurements
  y', y'' simulated from x are exchangeable: none is further from the others than another. With features f, the ratio

      E‖f(y) − f(y')‖² / E‖f(y'') − f(y')‖²

  is 1, as χ² per measured value is for Gaussian noise: above 1 draws miss their observations, below 1 they follow the
  noise.
- `simulated_distance`: do measurements simulated from draws have the distribution of the real ones? Measurements of one
  half of the draws are compared with the real measurements of the other half; two halves of the real measurements give
  the distance that chance alone produces.
- `simulation_score`: do samples of the prior predict observations they were not trained on? The energy score (Gneiting
  & Raftery 2007) of the simulated measurements, which is proper: no other prior has a better expected score than the
  true one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.randomness import Stream
from ..observations import Observations
from ..observations.features import Features, is_simulated
from ..operators import Channel
from .distances import sliced_wasserstein
from .estimate import Estimate

SPLITS = 8  # random halves of the observations
PAIRS = 256  # largest number of simulated measurements whose distances from each other are computed


@dataclass(frozen=True)
class Fit:
    """How well draws fit their observations.

    Attributes:
        ratio: The ratio of squared distances; 1 for the true posterior.
        z: How often y is further from a simulation than a second simulation is: the deviation of that share from ½, in
            standard errors.
    """

    ratio: float
    z: float


@in_default_modes
@torch.no_grad()
def simulated_fit(draws: Tensor, obs: Observations, seed: int = 0) -> Fit:
    """Compare the distance of y from measurements of its draws with the distance of two such measurements.

    Args:
        draws: (k, n, *event). Posterior draws.
        obs: Their n observations, of a random channel.
        seed: The seed of the simulation.

    Raises:
        InputError: If the observations are not those of a channel, or the channel is deterministic.
    """
    A = _channel(obs)
    if not A.random:
        raise InputError("simulated_fit needs a random channel: two measurements of one x do not differ here")
    weight, real = _weights(obs), A.features(obs.y)
    own, other = [], []
    for k, x in enumerate(draws):
        first, second = (A.features(_simulated(A, x, seed, "simulated fit", 2 * k + i)) for i in (0, 1))
        own.append(_squares(real - first, weight))
        other.append(_squares(second - first, weight))
    d_own, d_other = torch.stack(own), torch.stack(other)
    further = (d_own > d_other).double() + 0.5 * (d_own == d_other).double()
    each = further.mean(0)
    # the indicators of k draws have at least the variance of independent ones
    variance = max(float(each.var(correction=0)), 0.25 / len(draws))
    total = float(d_other.sum())
    ratio = float(d_own.sum()) / total if total > 0 else math.inf if float(d_own.sum()) > 0 else 1.0
    return Fit(ratio, (float(each.mean()) - 0.5) / math.sqrt(variance / len(each)))


@in_default_modes
@torch.no_grad()
def simulated_distance(draws: Tensor, obs: Observations, seed: int = 0) -> tuple[float, float]:
    """Sliced distance between real measurements and measurements simulated from draws, and its value by chance.

    Args:
        draws: (k, n, *event). Posterior draws, of which the first one of every observation is used.
        obs: Their n observations, of a channel.
        seed: The seed of the simulation and of the halves.

    Returns:
        The mean distance between the simulated features of one half and the real features of the other, and that
        between the real features of both halves.
    """
    A, n = _channel(obs), len(obs)
    if n < 4:
        raise InputError(f"simulated_distance needs at least 4 observations, got {n}")
    real = A.features(obs.y)
    fake = A.features(_simulated(A, draws[0], seed, "simulated distance"))
    weight = _weights(obs).sqrt()
    real, fake = (_flat(f, weight) for f in (real, fake))
    simulated, chance = 0.0, 0.0
    for split in range(SPLITS):
        one, two = Stream(seed, "halves").permutation(n, split, real.device).tensor_split(2)
        simulated += sliced_wasserstein(fake[one], real[two], slices=256, seed=seed) / SPLITS
        chance += sliced_wasserstein(real[one], real[two], slices=256, seed=seed) / SPLITS
    return simulated, chance


@in_default_modes
@torch.no_grad()
def simulation_scores(samples: Tensor, obs: Observations, seed: int = 0) -> Tensor:
    """The negative energy score of every observation, `(n,)`, in units of the spread of the features; higher is better.

    Args:
        samples: (m, *event). Samples of the prior, m ≥ 2.
        obs: The observations, of a channel.
        seed: The seed of the simulation.
    """
    A, m = _channel(obs), min(len(samples), PAIRS)
    if m < 2:
        raise InputError(f"simulation_scores needs at least 2 samples, got {m}")
    x, weight, real = samples[:m], _weights(obs).sqrt(), A.features(obs.y)
    shared = not A.per_observation()
    scores, spread, fake = [], 0.0, real
    for i in range(len(obs)):
        if i == 0 or not shared:  # observations without individual parameters share their predictions
            here = _repeated(A, i, m)
            fake = _flat(here.features(_simulated(here, x, seed, "simulation score")), weight)
            spread = float(torch.pdist(fake).double().mean())
        distance = float((fake - _flat(real[i : i + 1], weight)).norm(dim=1).double().mean())
        scores.append(0.5 * spread - distance)
    return torch.tensor(scores, dtype=torch.float64) / math.sqrt(real[0].numel())


def simulation_score(samples: Tensor, obs: Observations, seed: int = 0) -> Estimate:
    """The mean of `simulation_scores`, and its standard error over the observations."""
    each = simulation_scores(samples, obs, seed)
    return Estimate(float(each.mean()), float(each.std()) / math.sqrt(len(each)) if len(each) > 1 else math.nan)


def _channel(obs: Observations) -> Channel:
    if not is_simulated(obs):
        raise InputError(
            "these observations are linear with Gaussian noise: use obs.chi2 and predictive_log_likelihood"
        )
    A = obs.A
    assert isinstance(A, Channel)
    return A


def _simulated(A: Channel, x: Tensor, seed: int, purpose: str, draw: int = 0) -> Tensor:
    index = torch.arange(len(x), device=x.device)
    return A.simulate(x, Stream(seed, purpose), index, torch.full_like(index, draw))


def _repeated(A: Channel, i: int, times: int) -> Channel:
    """The channel of observation i for `times` samples."""
    return A[torch.full((times,), i)] if A.per_observation() else A


def _weights(obs: Observations) -> Tensor:
    """1/variance of every channel of the features, `(channels, ...)`; 0 for constant channels."""
    maps = _maps(_channel(obs).features(obs.y))
    variance = maps.double().transpose(0, 1).flatten(1).var(1)
    weight = torch.where(variance > 0, 1 / torch.where(variance > 0, variance, 1), 0)
    return weight.to(maps).reshape(-1, *(1,) * (maps.ndim - 2))


def _maps(features: Tensor) -> Tensor:
    known = torch.ones(len(features), dtype=torch.bool, device=features.device)
    return Features(features, known).maps


def _flat(features: Tensor, weight: Tensor) -> Tensor:
    return (weight * _maps(features)).flatten(1)


def _squares(difference: Tensor, weight: Tensor) -> Tensor:
    """Weighted squared norm of every difference, `(n,)`."""
    return (weight * _maps(difference).double().square()).flatten(1).sum(1)
