r"""Do operators and observations belong together? Two observations should fit their own operators better than swapped.

Under the Gaussian start, log N(y; Aμ, AΣAᵀ + Σ_y) is summed over two observations, with their own operators and with
the operators swapped. The rank of the own operators is the fraction of the pairs that they win. If operators and
observations were shuffled, the mean rank is ½, whatever the Gaussian. If they belong together, it is that of simulated
observations. A Gaussian that is too wide or too narrow prefers some operators for every y, such as the sharpest blur;
in a pair this cancels, because both sides contain both operators. Only values that both operators measure are compared:
for masks nothing is left to compare, and the ranks are ½ in both cases (`masks.py` checks masks).
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

GROUP = 5  # observations per group; pairs are compared within groups, which are independent of each other
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
    """Return the ranks of the own operators; None with a single operator, or fewer than four observations."""
    if any(part.obs.A.batch is None or len(part.obs) < 4 for part in unseen):
        return None
    parts = [_ranks(part, seed, k) for k, part in enumerate(unseen)]
    ranks, expected = (torch.cat(part) for part in zip(*parts, strict=True))
    return PairingEvidence(clustered_mean(ranks), clustered_mean(expected), clustered_mean(expected - ranks))


def _ranks(unseen: UnseenObservations, seed: int, part: int) -> tuple[Tensor, Tensor]:
    """Return the ranks of the own operators, and those for simulated y, both `(groups, pairs)`."""
    n = min(len(unseen.obs), OBSERVATIONS)
    size = min(GROUP, n // 2)
    groups = n // size
    obs = unseen.obs[: size * groups]  # observation i belongs to group i modulo `groups`
    measured, index = measured_values(obs), torch.arange(len(obs), device=obs.y.device)
    stream, results = Stream(seed, "model check pairing", part), []
    for k in range(1, size // 2 + 1):
        other = index.roll(-k * groups)  # in the same group
        chosen = choose(measured & measured[other], VALUES)
        gain = torch.zeros(2, len(obs), dtype=torch.float64, device=obs.y.device)  # for y, and for simulated y
        for first, second in ((index, other), (other, index)):
            mine = obs[first]
            swapped = copy.copy(mine)
            swapped.A = obs.A[second]
            laws = (
                observation_laws(unseen.prior, mine, chosen),
                observation_laws(unseen.prior, swapped, chosen),
                observation_laws(unseen.fitted, mine, chosen),
            )
            for (rows, own), (_, foreign), (_, likely) in zip(*laws, strict=True):
                z = stream.normal(first[rows], tuple(own.residual.shape[1:]), step=k, dtype=torch.float64)
                gain[0, rows] += own.log_prob() - foreign.log_prob()
                # the residual if y is replaced by a sample of the distribution fitted to it
                change = likely.simulated(z).residual - likely.residual
                own, foreign = (replace(law, residual=law.residual + change) for law in (own, foreign))
                gain[1, rows] += own.log_prob() - foreign.log_prob()
        results.append((gain.sign() + 1) / 2)  # 1 if the own operators fit better, ½ if both fit equally well
    ranks, expected = torch.stack(results, -1).reshape(2, size, groups, -1).transpose(1, 2).flatten(2)
    return ranks, expected
