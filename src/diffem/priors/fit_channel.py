r"""The Gaussian start for observations of a channel, by statistical linearisation.

A channel has no likelihood, but it has an estimate t(y) of x, such as counts divided by the peak. Under a Gaussian
prior N(μ, Σ) the best linear description of every entry of the estimate is the regression

    t = b x + c + e,      b = Cov(t, x)/V[x],      c = E[t] − b E[x],      V[e] = V[t] − b² V[x],

whose moments follow from simulated pairs (x, t(y)), with x restricted to the range of the estimates. So (t − c)/b are
observations of x itself with independent noise of variance D = V[e]/b², for which posteriors are exact. A Gaussian that
agrees with the mean t̄ and covariance C of the estimates of all observations has

    μ = (t̄ − c)/b,      Σ = C/(b bᵀ) − diag D,

without its negative eigenvalues. b, c and D depend on the Gaussian, so a few rounds repeat both steps. (Statistical
linear regression is what sigma-point Kalman filters do, e.g. García-Fernández et al. 2015.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.randomness import Stream
from ..linalg import DenseCovariance, Diagonal
from ..observations import Observations
from ..observations.batches import in_parts
from ..operators import Channel, Identity
from .fit import MAX_DENSE, fit_gaussian
from .gaussian import GaussianPrior

PAIRS = 4096  # simulated pairs (x, y), fewer if samples are large
NUMBERS = 1 << 24  # largest number of values in all simulated samples
ROUNDS = 4
LOW_RANK_ROUNDS = 16  # rounds of the Gaussian fit in every round
SIGNIFICANT = 16.0  # an entry is informative if its squared correlation exceeds this, divided by the pairs
FLOOR = 1e-6  # smallest eigenvalue of Σ and smallest noise, relative to the largest variance


@dataclass(frozen=True)
class Linearisation:
    """The relation t = bx + c + e of every entry; `(*event)` each, in float64.

    Attributes:
        gain: b.
        offset: c.
        variance: D = V[e]/b².
        known: Entries whose estimate is correlated with x.
        mean: The prior's mean.
    """

    gain: Tensor
    offset: Tensor
    variance: Tensor
    known: Tensor
    mean: Tensor

    def observe(self, estimate: Tensor) -> Tensor:
        """(t − c)/b for estimates t `(n, *event)`; the prior's mean where the estimate is not correlated with x."""
        return torch.where(self.known, (estimate.double() - self.offset) / self.gain, self.mean)


@torch.no_grad()
def linearise(obs: Observations, prior: GaussianPrior, seed: int = 0) -> Linearisation:
    """Linearise the channel of some observations around a Gaussian prior.

    Args:
        obs: The observations. Their parameters are used in turn.
    """
    pairs = max(64, min(PAIRS, NUMBERS // math.prod(obs.x_shape)))
    index = torch.arange(pairs)
    some = obs[index * len(obs) // pairs if len(obs) > pairs else index % len(obs)].to(prior.mean.device)
    assert isinstance(some.A, Channel)
    seen = some.A.estimate(some.y)
    assert seen is not None
    # a Gaussian has samples outside of the range of the data, such as negative intensities
    low, high = min(seen.min(), prior.mean.min()), max(seen.max(), prior.mean.max())
    x = prior.sample(pairs, seed=seed).clamp(float(low), float(high))
    t = some.A.estimate(some.A.simulate(x, Stream(seed, "linearised channel"), index))
    assert t is not None
    x, t = x.double(), t.double()
    mean_x, mean_t, var_x, var_t = x.mean(0), t.mean(0), x.var(0), t.var(0)
    both = ((x - mean_x) * (t - mean_t)).sum(0) / (pairs - 1)
    known = both.square() > SIGNIFICANT / pairs * var_x * var_t
    gain = torch.where(known, both / torch.where(known, var_x, 1), 1)
    error = (var_t - gain.square() * var_x).clamp(min=0) / gain.square()
    largest = var_x.max()
    variance = torch.where(known, error, largest).clamp(min=float(FLOOR * largest))
    return Linearisation(gain, mean_t - gain * mean_x, variance, known, prior.mean.double())


@in_default_modes
@torch.no_grad()
def linearised(obs: Observations, prior: GaussianPrior, seed: int = 0) -> Observations:
    """Approximate observations of a channel by direct observations of x with independent Gaussian noise.

    The approximation is the best linear one for samples of this prior.
    """
    law = linearise(obs, prior, seed)
    return _observed(obs, law)


def _observed(obs: Observations, law: Linearisation) -> Observations:
    assert isinstance(obs.A, Channel)
    t = obs.A.estimate(obs.y)
    assert t is not None
    y = law.observe(t.to(law.gain.device)).to(obs.y.dtype)
    return Observations(y, Identity(), cov=Diagonal(law.variance.to(y.dtype)).bind(y.ndim - 1))


@in_default_modes
@torch.no_grad()
def fit_channel_gaussian(
    obs: Observations, rank: int | None = None, *, rounds: int = ROUNDS, seed: int = 0
) -> GaussianPrior:
    """Fit a Gaussian to observations of a channel that has an estimate of x.

    Args:
        obs: The observations.
        rank: The rank of the covariance; None for a full one.
        rounds: Rounds of linearisation and fit.
        seed: The seed of the simulations.

    Raises:
        InputError: If the observations are not those of a channel, or the channel has no estimate of x.
    """
    first = obs[:1]
    if not isinstance(first.A, Channel):
        raise InputError("fit_channel_gaussian takes observations of a Channel; for others use fit_gaussian")
    if first.A.estimate(first.y) is None:
        raise InputError(
            f"a Gaussian start needs an estimate of x, of shape {obs.x_shape}, and the features of this Channel have "
            f"another shape: give Channel(..., estimate=...), or start from a prior (fit(..., start=prior))"
        )
    size, dtype = math.prod(obs.x_shape), first.y.dtype
    if rank is None and size > MAX_DENSE:
        raise InputError(
            f"samples of {count_of(size, 'number')} need gaussian.rank: a full covariance takes at most {MAX_DENSE}"
        )
    mean, cov = _moments(obs)
    if rank is not None:
        return _fit_low_rank(obs, rank, mean, cov.diagonal() if cov.ndim > 1 else cov, rounds, seed)
    prior = GaussianPrior(mean.to(dtype), _positive(cov).to(dtype))
    for _ in range(rounds):
        law = linearise(obs, prior, seed)
        gain, known = law.gain.flatten(), law.known.flatten()
        signal = torch.where(known & known.unsqueeze(1), cov / (gain * gain.unsqueeze(1)), 0)
        noise = torch.where(known, law.variance.flatten(), 0)
        prior = GaussianPrior(law.observe(mean.unsqueeze(0))[0].to(dtype), _positive(signal - noise.diag()).to(dtype))
    return prior


def _fit_low_rank(
    obs: Observations, rank: int, mean: Tensor, variances: Tensor, rounds: int, seed: int
) -> GaussianPrior:
    dtype = obs[:1].y.dtype
    prior = GaussianPrior(mean.to(dtype), Diagonal(variances.clamp(min=1e-12).reshape(obs.x_shape).to(dtype)))
    for _ in range(rounds):
        prior = fit_gaussian(linearised(obs, prior, seed), rank, rounds=LOW_RANK_ROUNDS, seed=seed, progress=False)
    return prior


def _moments(obs: Observations) -> tuple[Tensor, Tensor]:
    """Mean `(*event)` and covariance `(N, N)` of the estimates, in float64; the variances `(N,)` if N is large."""
    size, count = math.prod(obs.x_shape), 0
    sums = torch.zeros(size, dtype=torch.float64)
    full = size <= MAX_DENSE
    squares = torch.zeros(size, size, dtype=torch.float64) if full else torch.zeros(size, dtype=torch.float64)
    center: Tensor | None = None
    for part in in_parts(obs):
        assert isinstance(part.A, Channel)
        estimate = part.A.estimate(part.y)
        assert estimate is not None
        t = estimate.flatten(1).double().cpu()
        center = t.mean(0) if center is None else center  # squares of values far from zero lose precision
        t, count = t - center, count + len(t)
        sums += t.sum(0)
        squares += t.T @ t if full else t.square().sum(0)
    assert center is not None
    mean = sums / count
    cov = squares / count - (torch.outer(mean, mean) if full else mean.square())
    return (center + mean).reshape(obs.x_shape), cov


def _positive(matrix: Tensor) -> DenseCovariance:
    """The covariance with eigenvalues of at least a small share of the largest."""
    values, vectors = torch.linalg.eigh(matrix)
    largest = float(values[-1]) if values[-1] > 0 else 1.0
    return DenseCovariance.from_eigen(values.clamp(min=FLOOR * largest), vectors)
