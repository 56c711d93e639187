r"""The noise level in the covariance of y, for operators with AAᵀ = I (masks, complete data).

For such operators the noise is an isotropic part of the covariance that the observations show, T = Σ + σ²I (or Σ +
diag(σ_g²) for groups of values). Σ can absorb any part of it, so the likelihood is the same for every σ² ≤ λ_min(T).
The data determine the noise only if Σ is singular: then the k smallest eigenvalues of T are all equal to σ². That is
visible if x lies near a subspace, so that a gap separates these eigenvalues from the others. (Entries of x that are
constant show the noise directly: `noise_constant.py`.)

T is fitted first, as a Gaussian without noise. Then the largest k is found whose equality a likelihood-ratio test does
not reject (Lawley 1956), with rank r = N − k left for Σ, and

    σ² = mean of the k smallest eigenvalues · M / (M − k(r + 1)),      M = Σ_ij σ²[K_i⁻¹]_jj,

where K_i is the covariance of observation i and M the number of values that show noise alone. The factor accounts for
the k(r + 1) coefficients by which Σ fits the noise; for complete data M = nk and the factor is n / (n − r − 1).

The test needs many observations per direction: with M < k²/FEW, eigenvalues of noise spread so widely that falling
eigenvalues of a signal pass it. The level then counts as undetermined.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg import DenseCovariance, LowRank
from ..observations import Observations
from ..operators import Identity, Mask
from .gaussian import GaussianPrior
from .levels import NORMAL95, NoiseLevels
from .marginal import choose, measured_values, observation_laws

REJECTED = 3.0  # standard deviations of χ² above its mean, beyond which eigenvalues are not equal
EQUAL = 4  # smallest number of directions of equal variance: fewer may be equal by accident
EQUAL_SHARE = 1 / 20  # smallest fraction of all directions that have this variance
GAP = 2.0  # smallest ratio of the next eigenvalue to the largest of these
PRECISE = 0.1  # standard error of log σ above which the level counts as undetermined
FEW = 0.1  # largest ratio of the directions of noise to the observations of each that the test distinguishes
VALUES = 1024  # largest number of measured values per observation
EVALUATED = 4096  # largest number of observations per pass
ITERATIONS = 100  # iterations of the factor analysis for several levels


@dataclass(frozen=True)
class _Pass:
    """One pass through the observations: their log-likelihood, and M for each group `(G,)`."""

    log_likelihood: float
    noise_values: Tensor


def split_noise(
    prior: GaussianPrior, obs: Observations, groups: Tensor, fitted: int
) -> tuple[GaussianPrior, NoiseLevels]:
    """Split the covariance of y into signal and noise.

    Args:
        prior: N(μ, T), fitted to the observations with negligible noise.
        obs: Observations with that negligible noise, of operators with AAᵀ = I; a part of those that the prior was
            fitted to.
        groups: `(N,)`. The noise level, 0 … G−1, of each entry of x.
        fitted: The number of observations the prior was fitted to.

    Returns:
        The prior N(μ, Σ) of the signal, and the levels.
    """
    cov = prior.covariance()
    if isinstance(cov, LowRank):
        return _isotropic_part(prior, cov, obs)
    assert isinstance(cov, DenseCovariance)
    matrix, size = cov.to(torch.float64).matrix()[0], prior.mean.numel()
    some = obs[: min(len(obs), EVALUATED)].to(torch.float64)
    count = int(groups.max()) + 1
    share = fitted / len(some)
    full = _evaluate(prior, some, None, groups, count).log_likelihood
    found: dict[int, tuple[Tensor, Tensor, _Pass]] = {}

    def is_accepted(rank: int) -> bool:
        signal, variances = factor_split(matrix, groups, rank)
        result = _evaluate(_with_covariance(prior, signal), some, variances, groups, count)
        found[rank] = signal, variances, result
        freedom = size * (size + 1) / 2 - (size * rank - rank * (rank - 1) / 2 + count)
        ratio = 2 * share * (full - result.log_likelihood)
        return freedom > 0 and ratio <= freedom + REJECTED * math.sqrt(2 * freedom)

    rank = smallest_accepted(is_accepted, size - 1)
    if rank not in found:  # nothing was accepted: one direction alone has the smallest variance
        is_accepted(rank)
    signal, variances, result = found[rank]
    values, free = result.noise_values * share, size - rank
    left = 1 - free * (rank + 1) / float(values.sum().clamp(min=1e-9))
    error = (2 * values * max(left, 1e-9)).clamp(min=1e-9).rsqrt()
    visible = noise_is_visible(matrix, variances[groups], free, count)
    many = free**2 <= FEW * float(values.sum())
    determined = rank > 0 and visible and many and left > 0 and bool((error < PRECISE).all())
    if determined:
        levels = NoiseLevels.of((variances / left).sqrt(), error, True)
    else:
        observed = share * float(some.counts().sum()) / size
        levels = NoiseLevels.of(variances.sqrt(), _error_of_bound(matrix, groups, variances, observed), False)
    return _with_covariance(prior, signal), levels


def _error_of_bound(matrix: Tensor, groups: Tensor, variances: Tensor, observed: float) -> Tensor:
    """Standard errors of log σ `(G,)` whose 95 % interval ends at the largest level that T `(N, N)` allows.

    The smallest of N eigenvalues of a sample covariance of noise is σ²(1 − √(N/n))², not σ² (Marchenko and Pastur
    1967). No level exceeds the standard deviation of an entry, which bounds it if n < N.

    Args:
        variances: `(G,)`. The variances that were split off.
        observed: n, the number of observations that measure an entry.
    """
    infinite = torch.full_like(variances, torch.inf)
    entries = infinite.scatter_reduce(0, groups, matrix.diagonal(), "amin") / variances
    ratio = len(matrix) / observed
    sampling = 1 / (1 - math.sqrt(ratio)) ** 2 if ratio < 1 else math.inf
    return entries.clamp(min=1, max=sampling).log() / (2 * NORMAL95)


def noise_is_visible(matrix: Tensor, noise: Tensor, equal: int, count: int) -> bool:
    """Whether noise and signal can be separated in T `(N, N)`: a gap follows its `equal` smallest eigenvalues.

    Without a gap, the smallest eigenvalues may as well belong to a signal of full rank.
    """
    if equal - count + 1 < max(EQUAL, EQUAL_SHARE * len(matrix)) or equal >= len(matrix):
        return False
    values = torch.linalg.eigvalsh(matrix / (noise[:, None] * noise).sqrt())
    return bool(values[equal] > GAP * values[equal - 1])


def smallest_accepted(is_accepted: Callable[[int], bool], largest: int) -> int:
    """The smallest rank that is accepted, by bisection; `largest` if none is. All ranks above it are accepted too."""
    low, high = 0, largest
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_accepted(middle) else (middle + 1, high)
    return low


def factor_split(matrix: Tensor, groups: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factor analysis of T `(N, N)`: the covariance of the signal, of rank r, and the variances of the groups `(G,)`.

    For one group these are the principal directions and the mean of the other eigenvalues (Tipping & Bishop 1999). For
    several, the directions and the variances are updated in turn.
    """
    count, diagonal = int(groups.max()) + 1, matrix.diagonal()
    sizes = torch.zeros(count, dtype=matrix.dtype, device=matrix.device).index_add_(
        0, groups, torch.ones_like(diagonal)
    )

    def mean_of_groups(values: Tensor) -> Tensor:
        return torch.zeros_like(sizes).index_add_(0, groups, values) / sizes

    # what the other entries do not explain of an entry contains all of its noise (Guttman 1953)
    variances = mean_of_groups(1 / torch.linalg.inv(matrix).diagonal())
    lowest = 1e-6 * mean_of_groups(diagonal)
    signal = torch.zeros_like(matrix)
    for _ in range(1 if count == 1 else ITERATIONS):
        scale = variances[groups].sqrt() if count > 1 else torch.ones_like(diagonal)
        values, vectors = torch.linalg.eigh(matrix / (scale[:, None] * scale))
        noise = values[: len(values) - rank].mean() if count == 1 else torch.ones_like(values[0])
        kept = (values[len(values) - rank :] - noise).clamp(min=0)
        directions = scale[:, None] * vectors[:, len(values) - rank :]
        signal = (directions * kept) @ directions.T
        before, variances = variances, mean_of_groups(diagonal - signal.diagonal()).clamp(min=lowest)
        if bool(((variances / before).log().abs() < 1e-5).all()):
            break
    return signal, variances


def _isotropic_part(prior: GaussianPrior, cov: LowRank, obs: Observations) -> tuple[GaussianPrior, NoiseLevels]:
    """A fit T = UUᵀ + dI of given rank: all of d is noise."""
    variances, factor = cov._tensors["variances"], cov._tensors["factor"]
    d = variances.double().flatten()[:1]
    rank, values = len(factor), float(obs.counts().sum())
    free = values - len(obs) * min(rank, values / len(obs))
    error = torch.tensor([(2 * max(free, 1e-9)) ** -0.5], dtype=torch.float64, device=d.device)
    # a Gaussian needs a positive variance everywhere
    signal = GaussianPrior(
        prior.mean, LowRank(factor, 1e-3 * variances), sigma_min=prior.sigma_min, sigma_max=prior.sigma_max
    )
    return signal, NoiseLevels.of(d.sqrt(), error, bool(error < PRECISE))


def _with_covariance(prior: GaussianPrior, matrix: Tensor) -> GaussianPrior:
    values, vectors = torch.linalg.eigh(matrix)
    cov = DenseCovariance.from_eigen(values.clamp(min=0).to(prior.mean), vectors.to(prior.mean))
    return GaussianPrior(prior.mean, cov, sigma_min=prior.sigma_min, sigma_max=prior.sigma_max)


def _evaluate(prior: GaussianPrior, obs: Observations, variances: Tensor | None, groups: Tensor, count: int) -> _Pass:
    """Log-likelihood of the observations, with further noise of variances `(G,)` if given, and M of each group."""
    total, noise_values = 0.0, torch.zeros(count, dtype=torch.float64, device=groups.device)
    chosen = choose(measured_values(obs), VALUES)
    for rows, law in observation_laws(prior, obs, chosen):
        here = groups[chosen.index[rows]] if count > 1 else torch.zeros_like(chosen.index[rows])
        extra = torch.zeros_like(law.residual) if variances is None else torch.where(law.inside, variances[here], 0)
        chol = torch.linalg.cholesky(law.covariance() + torch.diag_embed(extra))
        white = torch.linalg.solve_triangular(chol, law.residual.unsqueeze(-1), upper=False).squeeze(-1)
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        total += float(-0.5 * (white.square().sum() + logdet.sum() + law.inside.sum() * math.log(2 * math.pi)))
        if variances is not None:
            shares = extra * torch.cholesky_inverse(chol).diagonal(dim1=-2, dim2=-1)
            noise_values.index_add_(0, here.flatten(), torch.where(law.inside, shares, 0).flatten())
    return _Pass(total, noise_values)


def measures_entries(obs: Observations) -> bool:
    """Whether the operators measure single entries of x: noise and an isotropic part of Σ are then the same in y."""
    return isinstance(obs.A, Mask | Identity)
