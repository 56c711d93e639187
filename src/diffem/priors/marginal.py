r"""The exact distribution of observations under a Gaussian prior: y | A ~ N(Aμ, AΣAᵀ + Σ_y).

There is one distribution per observation, over its measured values or a window of them. `observation_laws` goes through
the observations in parts, which bounds the memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..files.memory import working_bytes
from ..linalg import Covariance, DenseCovariance
from ..observations import Observations
from .gaussian import GaussianPrior

NUMBERS = 1 << 24  # largest number of entries in a tensor of rows of A or of covariances
CPU_NUMBERS = 1 << 20  # entries in a tensor of rows of A that are used at a time on a CPU
TENSORS = 8  # tensors of that size that are held at a time


@dataclass(frozen=True)
class MeasuredSubset:
    """Up to p measured values of each observation.

    Attributes:
        index: (n, p). Indices into the flattened y.
        inside: (n, p). False on padding.
    """

    index: Tensor
    inside: Tensor

    def __getitem__(self, rows: slice | Tensor) -> MeasuredSubset:
        return MeasuredSubset(self.index[rows], self.inside[rows])

    def take(self, values: Tensor) -> Tensor:
        """The chosen entries of values `(n, *measurement)`, 0 on padding: `(n, p)`."""
        return values.flatten(1).gather(1, self.index).masked_fill(~self.inside, 0)


def measured_values(obs: Observations) -> Tensor:
    """Mask of the measured values, `(n, m)` over the flattened y."""
    measured = obs.measured
    full = torch.ones((), dtype=torch.bool, device=obs.y.device) if measured is None else measured
    return full.expand_as(obs.y).flatten(1)


def choose(measured: Tensor, most: int) -> MeasuredSubset:
    """Choose at most `most` entries of each row of `measured` `(n, m)`: adjacent ones in the middle."""
    counts = measured.sum(1)
    width = max(1, min(most, int(counts.max())))
    first = ((counts - width).clamp(min=0) // 2)[:, None]
    place = first + torch.arange(width, device=measured.device)
    # a stable sort puts the measured entries first, in order
    order = torch.argsort(~measured, dim=1, stable=True)
    return MeasuredSubset(order.gather(1, place.clamp(max=measured.shape[1] - 1)), place < counts[:, None])


@dataclass(frozen=True)
class ObservationLaw:
    """The laws of n observations; p chosen values each.

    Attributes:
        residual: (n, p). y − Aμ, 0 on padding.
        signal: (n, p, p). AΣAᵀ, 0 on padding.
        noise: (n, p, p). Σ_y, 0 on padding.
        inside: (n, p). False on padding.
    """

    residual: Tensor
    signal: Tensor
    noise: Tensor
    inside: Tensor

    def covariance(self) -> Tensor:
        """K = AΣAᵀ + Σ_y, with a unit diagonal on padding, `(n, p, p)`."""
        return self.signal + self.noise + torch.diag_embed((~self.inside).to(self.signal))

    def log_prob(self) -> Tensor:
        """log N(y; Aμ, K) per observation, `(n,)`; 0 where nothing was measured."""
        chol = torch.linalg.cholesky(self.covariance())
        white = torch.linalg.solve_triangular(chol, self.residual.unsqueeze(-1), upper=False).squeeze(-1)
        logdet = 2 * chol.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * (white.square().sum(1) + logdet + self.inside.sum(1).double() * math.log(2 * math.pi))

    def simulated(self, z: Tensor) -> ObservationLaw:
        """These laws, with residuals that are drawn from them: K^½ z for white noise z `(n, p)`."""
        chol = torch.linalg.cholesky(self.covariance())
        return replace(self, residual=torch.where(self.inside, (chol @ z.unsqueeze(-1)).squeeze(-1), 0))

    def predict(self, hidden: Tensor) -> Tensor:
        """Compute log p(y_j | values that are not hidden) for every chosen value j, `(n, p)`; hidden: `(n, p)` bool."""
        K, visible = self.covariance(), self.inside & ~hidden
        both = visible[:, :, None] & visible[:, None, :]
        chol = torch.linalg.cholesky(torch.where(both, K, torch.diag_embed((~visible).to(K))))
        known = torch.cat([K, self.residual.unsqueeze(-1)], -1).where(visible[:, :, None], 0)
        white = torch.linalg.solve_triangular(chol, known, upper=False)
        gain, r = white[..., :-1], white[..., -1:]
        error = self.residual - (gain.mT @ r).squeeze(-1)
        variance = K.diagonal(dim1=-2, dim2=-1) - gain.square().sum(1)
        return -0.5 * (error.square() / variance + (2 * math.pi * variance).log())


@torch.no_grad()
def observation_laws(
    prior: GaussianPrior, obs: Observations, chosen: MeasuredSubset
) -> Iterator[tuple[slice, ObservationLaw]]:
    """Iterate over parts of the observations: their indices, and the distributions of the chosen values in float64."""
    size, width = math.prod(prior.event_shape), chosen.index.shape[1]
    selects = isinstance(prior.covariance(), DenseCovariance) and obs[:1].selection() is not None
    each = width * max(width, 1 if selects else size)
    batch = max(1, min(NUMBERS, working_bytes(obs.y.device) // (8 * TENSORS)) // each)
    matrix = prior.covariance().to(torch.float64).matrix()[0] if selects else None  # type: ignore[attr-defined]
    for start in range(0, len(obs), batch):
        rows = slice(start, start + batch)
        part, here = obs[rows].to(torch.float64), chosen[rows]
        mean = prior.mean.double().expand(len(part), *prior.event_shape).contiguous()
        residual = here.take(part.y - part.A(mean))
        signal = _selected(matrix, here) if matrix is not None else _through(prior, part, here)
        yield rows, ObservationLaw(residual, signal, _noise(part, here), here.inside)


def _selected(matrix: Tensor, chosen: MeasuredSubset) -> Tensor:
    """AΣAᵀ of operators that measure single entries: blocks of Σ `(N, N)`."""
    blocks = matrix[chosen.index[:, :, None], chosen.index[:, None, :]]
    return torch.where(chosen.inside[:, :, None] & chosen.inside[:, None, :], blocks, 0)


def _through(prior: GaussianPrior, obs: Observations, chosen: MeasuredSubset) -> Tensor:
    """AΣAᵀ from the chosen rows of A, which are adjoints of unit vectors."""
    n, width = chosen.index.shape
    cov, signal = prior.covariance().to(torch.float64), obs.y.new_empty(n, width, width)
    # the rows of A are larger than AΣAᵀ: on a CPU a few observations at a time
    together = n if obs.y.device.type != "cpu" else max(1, CPU_NUMBERS // (width * math.prod(prior.event_shape)))
    for here in (slice(first, first + together) for first in range(0, n, together)):
        signal[here] = _product(cov, obs[here], chosen[here])
    return signal


def _product(cov: Covariance, obs: Observations, chosen: MeasuredSubset) -> Tensor:
    n, width = chosen.index.shape
    rows = torch.stack([obs.A.adjoint(_unit(obs, chosen, a)) for a in range(width)], 1)  # (n, p, *event)
    spread = cov.matvec(rows.flatten(0, 1)).reshape(n, width, -1)
    signal = rows.flatten(2) @ spread.mT
    return (signal + signal.mT) / 2


def _noise(obs: Observations, chosen: MeasuredSubset) -> Tensor:
    """The chosen block of Σ_y."""
    if obs.cov.is_diagonal:
        return torch.diag_embed(chosen.take(obs.cov.diagonal(tuple(obs.y.shape[1:])).expand(obs.y.shape)))
    columns = [chosen.take(obs.cov.matvec(_unit(obs, chosen, a))) for a in range(chosen.index.shape[1])]
    return torch.stack(columns, -1)


def _unit(obs: Observations, chosen: MeasuredSubset, a: int) -> Tensor:
    """Unit vector of the a-th chosen value of each observation, `(n, *measurement)`; 0 if there is none."""
    unit = torch.zeros_like(obs.y).flatten(1)
    unit.scatter_(1, chosen.index[:, a : a + 1], chosen.inside[:, a : a + 1].to(unit))
    return unit.reshape(obs.y.shape)
