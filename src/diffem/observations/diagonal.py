r"""Observations whose information is diagonal in a known basis, as direct measurements of single coordinates.

With AᵀΣ_y⁻¹A = Bᵀ diag(g) B and b = B AᵀΣ_y⁻¹y, the likelihood of x depends on y through

    y'_k = b_k / g_k = (Bx)_k + e_k,      e_k ~ N(0, 1/g_k) independent,

so a circular blur or k-space is a mask in other coordinates, with a different noise level for each, and all methods for
masks apply. The likelihoods differ by a factor that does not depend on x. Its logarithm is

    −½ (yᵀΣ_y⁻¹y − Σ g_k y'_k²) − ½ log|2πΣ_y| − ½ Σ log(g_k/2π).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg import Diagonal, Isotropic, dot
from ..operators import Mask
from ..operators.coordinates import Basis, coordinate_gains, to_coordinates
from ..operators.spectrum import Entries
from .lazy import LazyObservations, as_lazy
from .observations import Observations

NOTHING = 1e-14  # information, in units of the data's scale, that is below the rounding of sums
ROUNDING = 1e-26  # relative size of zeros in the float64 transform of a kernel


@dataclass(frozen=True)
class Coordinates:
    """Observations of single coordinates of Bx, `(n, N)`, and the basis B."""

    obs: LazyObservations
    basis: Basis


def diagonalised(obs: Observations) -> Coordinates | None:
    """Convert observations to measurements of coordinates, in float64.

    None if their information is not diagonal or A is a mask.

    Args:
        obs: Observations in units of their scale (`signal_scale`).
    """
    first = obs[:1]
    if first.selection() is not None or (spectrum := first.information()) is None:
        return None
    if not isinstance(spectrum.basis, Entries) and not isinstance(first.cov, Isotropic):
        return None  # with unequal noise the information may be diagonal for some observations only
    return Coordinates(LazyObservations(_CoordinateSource(as_lazy(obs))), spectrum.basis)


class _CoordinateSource:
    """The coordinates of lazy observations, computed when they are read."""

    def __init__(self, obs: LazyObservations) -> None:
        self._obs, self.adaptive, self.digest = obs, obs.adaptive, None
        self.x_shape: tuple[int, ...] = (math.prod(obs.x_shape),)

    def __len__(self) -> int:
        return len(self._obs)

    def read(self, rows: Tensor) -> Observations:
        return in_coordinates(self._obs[rows])


def in_coordinates(obs: Observations) -> Observations:
    """Convert observations with diagonal information to measurements of single coordinates, `(n, N)`, in float64."""
    y, gains, _ = measured_coordinates(obs)
    inside = gains > 0
    variances = torch.where(inside, 1 / torch.where(inside, gains, 1), 1)
    return Observations(y, Mask(inside), cov=Diagonal._raw(variances=(variances, 1)))


def measured_coordinates(obs: Observations) -> tuple[Tensor, Tensor, Tensor]:
    """Compute y' and g, `(n, N)`, both 0 if unmeasured, and the log factor of the likelihood, `(n,)`, in float64."""
    obs = obs.to(torch.float64)
    spectrum = obs.information()
    assert spectrum is not None
    gains = coordinate_gains(spectrum, obs.x_shape).expand(len(obs), -1)
    gains = torch.where(gains > (ROUNDING * gains.amax(1, keepdim=True)).clamp(min=NOTHING), gains, 0)
    inside = gains > 0
    precise_y = obs.noise.solve(obs.y)
    b = to_coordinates(spectrum.basis, obs.A.adjoint(precise_y))
    y = torch.where(inside, b / torch.where(inside, gains, 1), 0)
    variances = obs.noise.diagonal(tuple(obs.y.shape[1:])).expand_as(obs.y).flatten(1)
    logdet = torch.where(variances > 0, (2 * math.pi * variances.clamp(min=1e-300)).log(), 0).sum(1)
    logdet = logdet + torch.where(inside, (gains.clamp(min=1e-300) / (2 * math.pi)).log(), 0).sum(1)
    constant = -0.5 * (dot(obs.y, precise_y) - (gains * y.square()).sum(1) + logdet)
    return y, gains, constant


def likelihood_factor(obs: Observations, device: torch.device | None = None) -> float:
    """Sum over all observations of the log factor between their likelihood and that of their coordinates."""
    return sum(float(measured_coordinates(part.to(device or part.y.device))[2].sum()) for part in as_lazy(obs).parts())
