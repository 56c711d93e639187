r"""Gain and offset of groups of observations: y = g_k A x + b_k + e for an observation of group k.

All groups observe the same kind of x, so they share a Gaussian N(μ, Σ) for it, and the first group has g = 1 and b = 0.
In units of x, with y' = (y − b)/g, S = AΣAᵀ, K = S + Σ_y/g² and a = K⁻¹(y' − Aμ), the derivatives of the log-likelihood
are

    ∂/∂b = 1ᵀa / g,      ∂/∂log g = (Aμ)ᵀa + aᵀSa − tr K⁻¹S,

and Fisher scoring of (b, log g) alternates with rounds of `fit_gaussian`. Dividing by the gain afterwards gives
ordinary observations.

Only the first group determines the units of x. If it alone would estimate them with an error (δb, δlog g), group k has
the errors −(g_k δb, δlog g) besides its own, so with the information I_k of each group the covariance of its estimate
is

    I_k⁻¹ + T_k I_1⁻¹ T_k,      T_k = diag(g_k, 1).
"""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..linalg import ConvergenceWarning, Diagonal, Isotropic
from ..observations import Observations
from .fit import fit_gaussian
from .gaussian import GaussianPrior
from .marginal import choose, measured_values, observation_laws
from .rounds import sum_of_steps

STEPS = 100
FRESH = 10  # steps with a new Gaussian fit: one that continues cannot move its mean where its covariance has become 0
FIRST_ROUNDS, ROUNDS = 24, 12  # rounds of a new Gaussian fit, and of one that continues
SETTLED = 1e-4  # change of log g, and of b relative to the size of y, that ends the iteration
VALUES = 1024  # largest number of measured values per observation
SIZE = 512  # largest number of values in a sample


@dataclass(frozen=True)
class Calibration:
    """Estimated gains and offsets.

    Attributes:
        gain: `(G,)`. Gains relative to the first group, whose gain is 1.
        offset: `(G,)`. Offsets relative to the first group, whose offset is 0, in units of y.
        gain_error: `(G,)`. Standard errors of log g, relative to the first group.
        offset_error: `(G,)`. Standard errors of b, relative to the first group.
        labels: `(G,)`. The label of each group, ascending.
    """

    gain: Tensor
    offset: Tensor
    gain_error: Tensor
    offset_error: Tensor
    labels: Tensor

    def apply(self, obs: Observations, groups: Any) -> Observations:
        """The observations in units of the first group: y and its noise without gain and offset.

        Args:
            obs: The observations.
            groups: `(n,)`. The group of each observation, with the labels that were given to `calibrate`.
        """
        labels, known = _labels(groups, obs), self.labels.to(obs.y.device)
        places = torch.searchsorted(known, labels).clamp(max=len(known) - 1)
        if unknown := labels[known[places] != labels].unique().tolist():
            raise InputError(f"the calibration has the groups {known.tolist()}, not {unknown}")
        return _corrected(obs, places, self.gain, self.offset)


@torch.no_grad()
def calibrate(obs: Observations, groups: Any, *, seed: int = 0) -> Calibration:
    """Estimate gain and offset of each group of observations relative to the first group.

    Args:
        obs: Observations with independent noise of known level. Every group must observe the same kind of samples.
        groups: `(n,)`. Whole numbers, the group of each observation. The smallest is the reference.
        seed: Seed of the random numbers.

    Returns:
        Gains and offsets with their standard errors; `.apply(obs, groups)` corrects observations.

    Raises:
        InputError: If the labels do not fit or are all the same, the noise is correlated or unknown, or the samples are
            too large for a full covariance.
    """
    used, labels = _labels(groups, obs).unique(return_inverse=True)
    count = len(used)
    _require_comparable(obs, used, labels)
    exact = obs.to(torch.float64)
    log_gain, offset = (torch.zeros(count, dtype=torch.float64, device=obs.y.device) for _ in range(2))
    measured = measured_values(exact).reshape(exact.y.shape)
    scale = float(exact.y[measured].square().mean().sqrt()) or 1.0
    prior: GaussianPrior | None = None
    settled = False
    before = torch.zeros(2, count, dtype=torch.float64, device=obs.y.device)
    for k in range(STEPS):
        known = _corrected(exact, labels, log_gain.exp(), offset)
        rounds, start = (FIRST_ROUNDS, None) if k < FRESH else (ROUNDS, prior)
        prior = fit_gaussian(known, rounds=rounds, tolerance=1e-9, start=start, seed=seed, progress=False)
        score, information = _scores(prior, known, labels, log_gain.exp())
        step = torch.linalg.solve(information, score.unsqueeze(-1)).squeeze(-1).T  # (2, G): of b and of log g
        step[:, 0] = 0  # the reference
        if float((step[0].abs() / scale).max()) < SETTLED and float(step[1].abs().max()) < SETTLED:
            settled = True
            break
        whole, before = sum_of_steps(step, before), step
        offset = offset + whole[0].clamp(-scale, scale)
        log_gain = log_gain + whole[1].clamp(-0.7, 0.7)
    if not settled:
        warnings.warn(
            f"calibrate did not converge within {STEPS} steps: the last one changed log g by up to "
            f"{float(step[1].abs().max()):.1e} and b by up to {float(step[0].abs().max()):.1e}",
            ConvergenceWarning,
            stacklevel=2,
        )
    own = torch.linalg.inv(information).diagonal(dim1=-2, dim2=-1)  # (G, 2): variances of b and log g
    unit = torch.stack([log_gain.exp(), torch.ones_like(log_gain)], 1)
    error = (own + unit.square() * own[0]).sqrt()
    error[0] = 0
    return Calibration(log_gain.exp(), offset, error[:, 1], error[:, 0], used)


def _require_comparable(obs: Observations, used: Tensor, labels: Tensor) -> None:
    """Raise InputError unless there are several groups with enough values, and samples are not too large.

    Args:
        used: `(G,)`. The labels that occur.
        labels: `(n,)`. The index of each observation's label in `used`.
    """
    if len(used) < 2:
        raise InputError("calibrate compares groups of observations, and all of these have the same label")
    values = torch.zeros(len(used), device=obs.y.device).index_add_(0, labels, obs.counts().to(torch.float32))
    if (values < 2).any():
        few = used[values < 2].tolist()
        raise InputError(f"gain and offset need at least two measured values per group; too few in the groups {few}")
    if (size := math.prod(obs.x_shape)) > SIZE:
        raise InputError(f"calibrate takes samples of at most {SIZE} numbers, these have {size}")


def _labels(groups: Any, obs: Observations) -> Tensor:
    try:
        labels = torch.as_tensor(groups).to(obs.y.device)
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"groups must be {len(obs)} whole numbers, one per observation, got {groups!r:.80}") from None
    if labels.shape != (len(obs),) or labels.is_floating_point() or labels.is_complex():
        raise InputError(
            f"groups must be {len(obs)} whole numbers, one per observation, got {labels.dtype} {tuple(labels.shape)}"
        )
    if not isinstance(obs.cov, Isotropic | Diagonal):
        raise InputError(f"calibrate takes independent noise of known level, got {type(obs.cov).__name__}")
    return labels


def _corrected(obs: Observations, labels: Tensor, gain: Tensor, offset: Tensor) -> Observations:
    """(y − b)/g on the measured entries, with the noise of that."""
    per_value = (1,) * (obs.y.ndim - 1)
    g, b = (values.to(obs.y)[labels].reshape(-1, *per_value) for values in (gain, offset))
    new = copy.copy(obs)
    measured = measured_values(obs).reshape(obs.y.shape)
    new.y = torch.where(measured, (obs.y - b) / g, 0)
    variances = obs.cov.diagonal(tuple(obs.y.shape[1:])).expand_as(obs.y) / g.square()
    new.cov = Diagonal(variances.contiguous()).bind(obs.y.ndim - 1)
    return new


def _scores(prior: GaussianPrior, obs: Observations, labels: Tensor, gain: Tensor) -> tuple[Tensor, Tensor]:
    """Derivatives `(G, 2)` of the log-likelihood by b and log g, and their Fisher information `(G, 2, 2)`."""
    count = len(gain)
    score = torch.zeros(count, 2, dtype=torch.float64, device=obs.y.device)
    information = score.new_zeros(count, 2, 2)
    chosen = choose(measured_values(obs), VALUES)
    for rows, law in observation_laws(prior, obs, chosen):
        here = chosen[rows]
        g = gain[labels[rows]]
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(law.covariance()))
        mean = here.take(obs.y[rows].double()) - law.residual  # Aμ
        ones = law.inside.double()
        solved = (inverse @ law.residual.unsqueeze(-1)).squeeze(-1)
        whitened = inverse @ law.signal  # K⁻¹S, 0 on padding
        quadratic = (solved.unsqueeze(1) @ law.signal @ solved.unsqueeze(-1)).flatten()
        by_gain = (mean * solved).sum(1) + quadratic - whitened.diagonal(dim1=-2, dim2=-1).sum(1)
        score.index_add_(0, labels[rows], torch.stack([(ones * solved).sum(1) / g, by_gain], 1))

        def product(u: Tensor, v: Tensor, inverse: Tensor = inverse) -> Tensor:
            return (u.unsqueeze(1) @ inverse @ v.unsqueeze(-1)).flatten()

        gg = product(mean, mean) + 2 * (whitened * whitened.mT).sum((1, 2))
        bb, gb = product(ones, ones) / g.square(), product(mean, ones) / g
        information.index_add_(0, labels[rows], torch.stack([bb, gb, gb, gg], 1).reshape(-1, 2, 2))
    return score, information
