r"""Do operators and observations belong together? An observation should fit its own operator better than another's.

Under the Gaussian start, log N(y_i; A_jμ, A_jΣA_jᵀ + Σ_y) is computed for the observation's own operator and for the
operators of a few other observations. The rank of the own operator is the fraction of the others that it beats. If
operators and observations were shuffled, the mean rank is ½, whatever the Gaussian. If they belong together, it is that
of simulated observations. Only values that both operators measure are compared: for masks nothing is left to compare,
and the ranks are ½ in both cases (`masks.py` checks masks).
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ...core.randomness import Stream
from ...metrics.estimate import Estimate, clustered_mean
from ...observations import Observations
from ...priors import GaussianPrior
from ...priors.marginal import choose, measured_values, observation_laws

OTHERS = 4  # operators of other observations that each observation is compared with
VALUES = 256  # largest number of measured values per observation
OBSERVATIONS = 256  # largest number of observations per Gaussian


@dataclass(frozen=True)
class UnseenObservations:
    """Observations that `prior` was not fitted to, and `fitted`, a Gaussian that was fitted to them."""

    prior: GaussianPrior
    obs: Observations
    fitted: GaussianPrior


@dataclass(frozen=True)
class PairingEvidence:
    """Mean ranks of the own operator, from 0 to 1: observed, expected under the Gaussian, and their difference."""

    rank: Estimate
    expected: Estimate
    difference: Estimate


def pairing_evidence(unseen: list[UnseenObservations], seed: int = 0) -> PairingEvidence | None:
    """Return the ranks of the own operators; None if all observations share one operator."""
    if any(part.obs.A.batch is None or len(part.obs) < 2 for part in unseen):
        return None
    parts = [_ranks(part, seed, k) for k, part in enumerate(unseen)]
    ranks, expected = (torch.cat(part)[:, None] for part in zip(*parts, strict=True))
    return PairingEvidence(clustered_mean(ranks), clustered_mean(expected), clustered_mean(expected - ranks))


def _ranks(unseen: UnseenObservations, seed: int, part: int) -> tuple[Tensor, Tensor]:
    """Return the rank of each observation's own operator, and that for simulated y, both `(n,)`."""
    obs = unseen.obs[: min(len(unseen.obs), OBSERVATIONS)]
    n, measured = len(obs), measured_values(obs)
    ranks, expected = (torch.zeros(n, dtype=torch.float64, device=obs.y.device) for _ in range(2))
    stream, index = Stream(seed, "model check pairing", part), torch.arange(n, device=obs.y.device)
    count = min(OTHERS, n - 1)
    for k in range(count):
        # steps below n/2, so that no two observations are compared twice
        other = (index + 1 + k * (n - 1) // (2 * count)) % n
        swapped = copy.copy(obs)
        swapped.A = obs.A[other]
        chosen = choose(measured & measured[other], VALUES)
        laws = (
            observation_laws(unseen.prior, obs, chosen),
            observation_laws(unseen.prior, swapped, chosen),
            observation_laws(unseen.fitted, obs, chosen),
        )
        for (rows, own), (_, foreign), (_, likely) in zip(*laws, strict=True):
            z = stream.normal(index[rows], tuple(own.residual.shape[1:]), step=k, dtype=torch.float64)
            ranks[rows] += _beats(own.log_prob(), foreign.log_prob()) / count
            # the residual if y is replaced by a sample of the distribution fitted to it
            change = likely.simulated(z).residual - likely.residual
            pair = (replace(law, residual=law.residual + change) for law in (own, foreign))
            expected[rows] += _beats(*(law.log_prob() for law in pair)) / count
    return ranks, expected


def _beats(own: Tensor, other: Tensor) -> Tensor:
    """Return 1 if own is larger, ½ if both are equal, otherwise 0."""
    return (own > other).double() + 0.5 * (own == other).double()
