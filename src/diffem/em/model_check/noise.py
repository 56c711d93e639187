r"""Is the noise level correct? Gaussians are fitted with half, once and twice the stated level, and compared.

For any distribution of x, the expected log N(y; Aμ, AΣAᵀ + Σ_y) is largest at the true mean and covariance of y given
A. With enough observations, and if the operators separate AΣAᵀ from Σ_y, the correct level therefore fits best. If they
do not (masks: Σ + τ²I with less noise gives the same y), a lower level fits the observations better and others worse,
because Σ has more freedom, and a higher level the opposite. A level is therefore preferred only if it fits *both*
fitted and unseen observations better. The observations are split into two halves. Each half is fitted, the other half
is unseen, and a paired z-test compares the levels.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.counting import count_of
from ...linalg import Isotropic
from ...metrics.estimate import Estimate, clustered_mean
from ...observations import Observations
from ...priors import GaussianPrior, fit_gaussian
from ...priors.marginal import choose, measured_values, observation_laws
from ...runs.recipe import Gaussian
from .pairing import UnseenObservations

FACTORS = (0.5, 1.0, 2.0)
ROUNDS, TOLERANCE = 32, 1e-4  # rounds of the fits, and their tolerance in nats per measured value
FITS_BETTER = 5.0  # total nats by which another level must fit better; fits that have not converged differ slightly
VALUES = 1024  # largest number of measured values per observation
ENOUGH = 4  # measured values per parameter of the Gaussian, in each half
WORK = 4e10, 4e12  # floating-point operations of all fits on a CPU and on a GPU, a few seconds


@dataclass(frozen=True)
class Gain:
    """The gain of another noise level.

    Attributes:
        fitted: The gain on all fitted observations, in nats.
        unseen: The gain per unseen observation, in nats.
        values: The total number of measured values.
    """

    fitted: float
    unseen: Estimate
    values: int

    @property
    def stopping_error(self) -> float:
        """The largest difference between fits, in nats, that may be due to their stopping rule."""
        return FITS_BETTER + 10 * TOLERANCE * self.values

    @property
    def fits_better(self) -> bool:
        """Whether this level fits significantly better."""
        return self.fitted > self.stopping_error

    @property
    def fits_worse(self) -> bool:
        """Whether this level fits significantly worse."""
        return self.fitted < -self.stopping_error


@dataclass(frozen=True)
class NoiseEvidence:
    """The comparison of noise levels.

    Attributes:
        gains: The gains of half and twice the stated level.
        unseen: The halves, with the Gaussians fitted with the stated level.
        absorbed: Whether additional noise is indistinguishable from detail of x, whatever the data.
    """

    gains: dict[float, Gain]
    unseen: list[UnseenObservations]
    absorbed: bool


def noise_evidence(obs: Observations, options: Gaussian, seed: int = 0) -> NoiseEvidence | str:
    """Compare noise levels on some observations; return a reason if that is not possible.

    Args:
        options: The options of the Gaussian start.
    """
    if options.rank is not None:  # with a low-rank covariance the correct noise level need not fit best
        return "the check needs a Gaussian start with a full covariance, without gaussian.rank"
    if options.rounds is not None and options.rounds < ROUNDS // 2:
        return f"the check needs Gaussian fits of {ROUNDS // 2} rounds or more (gaussian.rounds)"
    obs = obs[: _affordable(obs)]
    counts, size = obs.counts(), math.prod(obs.x_shape)
    if int(counts.sum()) < ENOUGH * size * (size + 3) or int(counts.max()) > VALUES:
        return (
            f"samples of {count_of(size, 'number')} would need more observations, or more time, than the check may take"
        )
    halves = _Halves(obs, seed)
    gains = halves.gains()
    # a fit of the stated level that stopped too early is continued from the Gaussians of the other levels
    for factor in [factor for factor, gain in gains.items() if gain.fits_better]:
        halves.refit(factor)
        gains = halves.gains()
    return NoiseEvidence(gains, halves.unseen(), _absorbs_noise(obs))


def _absorbs_noise(obs: Observations) -> bool:
    """Whether AAᵀ = cI and Σ_y = σ²I: x + N(0, τ²I) with less noise then gives the same distribution of y."""
    gram = obs.A.gram_diagonal(obs.y)
    if gram is None or not isinstance(obs.cov, Isotropic) or obs.cov.batch is not None:
        return False
    gains = gram.expand_as(obs.y)[obs.measured.expand_as(obs.y)] if obs.measured is not None else gram
    return bool((gains == gains.flatten()[0]).all())


class _Halves:
    """Two halves of the observations, each with Gaussians fitted with every noise level."""

    def __init__(self, obs: Observations, seed: int) -> None:
        self.seed, self.values = seed, int(obs.counts().sum())
        self.obs = obs[0::2], obs[1::2]
        self.priors = [{factor: self._fit(half, factor) for factor in FACTORS} for half in self.obs]
        self.fitted = [self._evidence(half, half) for half in (0, 1)]
        self.other = [self._evidence(half, 1 - half) for half in (0, 1)]

    def _fit(self, obs: Observations, factor: float, start: GaussianPrior | None = None) -> GaussianPrior:
        return fit_gaussian(
            _with_noise(obs, factor), rounds=ROUNDS, tolerance=TOLERANCE, start=start, seed=self.seed, progress=False
        )

    def _evidence(self, fitted_to: int, seen: int) -> dict[float, Tensor]:
        """Return the log evidence of the observations of half `seen` under the Gaussians fitted to half `fitted_to`."""
        return {f: log_evidence(prior, _with_noise(self.obs[seen], f)) for f, prior in self.priors[fitted_to].items()}

    def refit(self, factor: float) -> None:
        """Fit with the stated level, starting from the Gaussian of another level; keep the result if it fits better."""
        for half in (0, 1):
            prior = self._fit(self.obs[half], 1.0, start=self.priors[half][factor])
            evidence = log_evidence(prior, self.obs[half])
            if evidence.sum() > self.fitted[half][1.0].sum():
                self.priors[half][1.0], self.fitted[half][1.0] = prior, evidence
                self.other[half][1.0] = log_evidence(prior, self.obs[1 - half])

    def gains(self) -> dict[float, Gain]:
        """Return the gains over the stated level."""
        gains = {}
        for factor in FACTORS:
            if factor != 1:
                fitted = sum(float((half[factor] - half[1.0]).sum()) for half in self.fitted)
                unseen = torch.cat([half[factor] - half[1.0] for half in self.other])
                gains[factor] = Gain(fitted, clustered_mean(unseen[:, None]), self.values)
        return gains

    def unseen(self) -> list[UnseenObservations]:
        """Return each half with the Gaussian fitted to the other half."""
        first, second = (priors[1.0] for priors in self.priors)
        return [UnseenObservations(first, self.obs[1], second), UnseenObservations(second, self.obs[0], first)]


def log_evidence(prior: GaussianPrior, obs: Observations) -> Tensor:
    """Return log N(y; Aμ, AΣAᵀ + Σ_y) of each observation, `(n,)`."""
    chosen = choose(measured_values(obs), VALUES)
    return torch.cat([law.log_prob() for _, law in observation_laws(prior, obs, chosen)])


def _affordable(obs: Observations) -> int:
    """Return the number of observations that can be fitted within `WORK`."""
    size, values = math.prod(obs.x_shape), float(obs.counts().double().mean())
    each = 30 * values**3 if obs.selection() is not None else 2 * values * size * (size + values) + values**3
    fits = ROUNDS * len(FACTORS)  # each of two halves of the observations
    return max(2, min(len(obs), int(WORK[obs.y.is_cuda] / (fits * each))))


def _with_noise(obs: Observations, factor: float) -> Observations:
    """Return the observations with `factor` times the stated noise."""
    new = copy.copy(obs)
    new.cov = obs.cov.scaled(factor)
    return new
