r"""The noise level of maximum likelihood together with a Gaussian prior, for operators whose rows overlap.

If the rows of A are not orthonormal (several observations of the same combination, dense matrices, blurs), isotropic
noise and an isotropic part of Σ look different in y, and the likelihood of (μ, Σ, σ) has a maximum in σ. Rounds of
`fit_gaussian` alternate with Fisher scoring of log σ_g², with K = AΣAᵀ + Σ_y and a = K⁻¹(y − Aμ):

    step_g = Σ_j∈g (a_j² − [K⁻¹]_jj) / (σ_g² Σ_j,l∈g [K⁻¹]_jl²).

Directions along which x is constant make this level too low; see `_without_small_directions`.

The iteration starts from low levels, from which scoring rises in a few steps. From high levels, the first rounds would
explain y by noise alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg import DenseCovariance, UnknownNoise
from ..observations import Observations
from ..observations.levels import with_levels
from ..operators.gain import mean_gain
from .gaussian import GaussianPrior
from .levels import NORMAL95, NoiseLevels
from .marginal import choose, measured_values, observation_laws
from .rounds import sum_of_steps

STEPS = 60
LOW = 1e-4  # first variance of the noise relative to the mean square of y
ROUNDS, LAST_ROUNDS = 24, 48  # rounds of the Gaussian fit: in a step, and to compare two levels
SETTLED = 5e-4  # change of log σ² below which the level is accepted
DETERMINED = 5.0  # nats by which half the level must fit worse
ALLOWED = 1.92  # nats by which the largest possible level fits worse: a one-sided test with an error of 2.5 %
HALVINGS = 7  # times that the search for that level halves the range of log σ; from σ to 100 σ, it is found to 4 %
SCORINGS = 8  # steps to the level for a given Σ; the error decreases quadratically
VALUES = 1024  # largest number of measured values per observation

Fit = Callable[[Observations, GaussianPrior | None, int], GaussianPrior]


@dataclass(frozen=True)
class _Scores:
    """Log-likelihood, and the first derivative and the Fisher information of log σ² for each group, `(G,)`."""

    log_likelihood: float
    score: Tensor
    information: Tensor


def score_noise(obs: Observations, fit: Fit, share: float = 1.0) -> tuple[GaussianPrior, NoiseLevels]:
    """Estimate the noise levels of observations made with `sigma="learn"`.

    Args:
        fit: (observations with known noise, a Gaussian to start from or None, rounds) → a Gaussian of full covariance.
        share: The number of all observations divided by that of `obs`, if these are a part.
    """
    prior, log_variance = maximum_likelihood(obs, fit)
    groups, count = _groups(obs)
    sigma = (log_variance / 2).exp()

    def fitted(sigma: Tensor) -> _Scores:
        known = with_levels(obs, sigma)
        return _scores(fit(known, prior, LAST_ROUNDS), known, groups, count)

    best, half = fitted(sigma), fitted(sigma / 2)
    if share * (best.log_likelihood - half.log_likelihood) <= DETERMINED:

        def loss(factor: float) -> float:
            return share * (best.log_likelihood - fitted(factor * sigma).log_likelihood)

        highest = float((_mean_squares(obs, groups, count).sqrt() / sigma).max())
        # the smallest eigenvalue of the sample covariance of m values of noise is τ²(1 − √(m/n))², not τ²
        ratio = min(float(measured_values(obs).sum()) / len(obs) ** 2, 0.9)
        error = torch.full_like(sigma, -math.log1p(-math.sqrt(ratio)) / NORMAL95)
        return prior, NoiseLevels.of(_largest(loss, highest) * sigma, error, False)
    higher = _without_small_directions(prior, obs, log_variance, groups, count)
    # of the observations that were scored, since the others add nothing; and whether the small directions vary
    error = torch.hypot(0.5 * best.information.clamp(min=1e-12).rsqrt(), 0.5 * (higher - log_variance))
    return prior, NoiseLevels.of((higher / 2).exp(), error, True)


def _largest(loss: Callable[[float], float], highest: float) -> float:
    """The largest factor from 1 to `highest` for which the loss of log-likelihood is at most ALLOWED nats.

    Smaller levels explain the observations equally well: the rest of the variation is then a part of x.
    """
    low, high = 0.0, math.log(max(highest, 1.0))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if loss(math.exp(middle)) <= ALLOWED else (low, middle)
    return math.exp(low)


def maximum_likelihood(obs: Observations, fit: Fit) -> tuple[GaussianPrior, Tensor]:
    """The Gaussian and log σ² `(G,)` of maximum likelihood; the arguments are those of `score_noise`."""
    groups, count = _groups(obs)
    log_variance = (LOW * _mean_squares(obs, groups, count)).log()
    prior, before = None, torch.zeros(count, dtype=torch.float64)
    for _ in range(STEPS):
        known = with_levels(obs, (log_variance / 2).exp())
        prior = fit(known, prior, ROUNDS)
        found = _scores(prior, known, groups, count)
        step = found.score / found.information.clamp(min=1e-12)
        whole, before = sum_of_steps(step, before), step
        log_variance = log_variance + whole.clamp(-1, 1)
        if bool((step.abs() < SETTLED).all()):
            break
    assert prior is not None
    return prior, log_variance


def _without_small_directions(
    prior: GaussianPrior, obs: Observations, log_variance: Tensor, groups: Tensor, count: int
) -> Tensor:
    """log σ² `(G,)` under the assumption that x is constant along directions of Σ that noise alone would explain.

    A covariance has no negative eigenvalues, so maximum likelihood explains part of the noise as variation of x along
    directions that are constant, and its level is too low by several standard errors. With n measurements of noise τ²
    per number, the eigenvalues of N constant numbers reach about τ²(2√(N/n) + N/n) (Marchenko and Pastur 1967).

    Args:
        prior: The Gaussian of maximum likelihood.
        log_variance: `(G,)`. log σ² of maximum likelihood.
    """
    cov = prior.covariance()
    assert isinstance(cov, DenseCovariance)  # `fit` has full covariance
    values, vectors = torch.linalg.eigh(cov.matrix()[0].double())
    gains = mean_gain(obs.A, obs.y).double().expand_as(obs.y)[measured_values(obs).reshape(obs.y.shape)]
    ratio = len(values) ** 2 / float(gains.sum())  # N/n, in measurements of unit gain
    edge = float(log_variance.exp().min()) * (2 * math.sqrt(ratio) + ratio)
    smaller = GaussianPrior(prior.mean, (vectors * torch.where(values > edge, values, 0)) @ vectors.T)
    for _ in range(SCORINGS):
        found = _scores(smaller, with_levels(obs, (log_variance / 2).exp()), groups, count)
        log_variance = log_variance + (found.score / found.information.clamp(min=1e-12)).clamp(-1, 1)
    return log_variance


def _groups(obs: Observations) -> tuple[Tensor, int]:
    """The group number of every value, `(n, *measurement)`, and the number of groups."""
    cov = obs.cov
    assert isinstance(cov, UnknownNoise)
    return cov.group_of_values(obs.y).expand_as(obs.y), cov.count


def _mean_squares(obs: Observations, groups: Tensor, count: int) -> Tensor:
    """The mean square of the measured values of each group, `(G,)`."""
    inside = measured_values(obs).flatten()
    y, group = obs.y.double().flatten()[inside], groups.flatten()[inside]
    total = torch.zeros(count, dtype=torch.float64, device=y.device)
    numbers = total.index_add(0, group, torch.ones_like(y))
    return (total.index_add(0, group, y.square()) / numbers.clamp(min=1)).clamp(min=1e-30)


def _scores(prior: GaussianPrior, obs: Observations, groups: Tensor, count: int) -> _Scores:
    log_likelihood = 0.0
    score, information = (torch.zeros(count, dtype=torch.float64, device=obs.y.device) for _ in range(2))
    chosen = choose(measured_values(obs), VALUES)
    for rows, law in observation_laws(prior, obs, chosen):
        here = groups[rows].flatten(1).gather(1, chosen.index[rows])
        noise = law.noise.diagonal(dim1=-2, dim2=-1)
        chol = torch.linalg.cholesky(law.covariance())
        inverse = torch.cholesky_inverse(chol)
        solved = (inverse @ law.residual.unsqueeze(-1)).squeeze(-1)
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum()
        values = float(law.inside.sum()) * math.log(2 * math.pi)
        log_likelihood -= 0.5 * float((law.residual * solved).sum() + logdet + values)
        first = 0.5 * noise * (solved.square() - inverse.diagonal(dim1=-2, dim2=-1))
        score.index_add_(0, here.flatten(), torch.where(law.inside, first, 0).flatten())
        both = (here[:, :, None] == here[:, None, :]) & law.inside[:, :, None] & law.inside[:, None, :]
        second = 0.5 * noise * (torch.where(both, inverse.square(), 0) * noise[:, None, :]).sum(-1)
        information.index_add_(0, here.flatten(), second.flatten())
    return _Scores(log_likelihood, score, information)
