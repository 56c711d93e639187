r"""The information G = AᵀΣ_y⁻¹A of observations: in a known basis, by its eigenvectors, or by products with A.

Observations of a channel have features in its place.
"""

from __future__ import annotations

import math

import torch

from ..operators import Channel
from ..operators.spectrum import Information, RowInformation, rounded
from .features import features_of
from .krylov import Krylov
from .matrices import measurement_matrices
from .observations import Observations

EXPLICIT = 256  # largest size of a sample for which G is formed and diagonalised


def information_of(obs: Observations, exact: bool = False) -> Information:
    """Represent G in a known basis if there is one, by its eigenvectors if samples are small, otherwise matrix-free.

    exact: Keep computed eigenvectors in float64 instead of rounding them to the precision of y.
    """
    if isinstance(obs.A, Channel):
        return features_of(obs)
    known = obs.information()
    if known is not None:
        return known
    if math.prod(obs.x_shape) <= EXPLICIT:
        information = explicit_information(obs)
        return information if exact else rounded(information, obs.y.dtype)
    return matrix_free_information(obs)


def matrix_free_information(obs: Observations) -> Krylov:
    """Represent G by products with A and Aᵀ."""
    return Krylov(obs.A, obs.noise, obs.y, obs.x_shape, torch.ones((), dtype=obs.y.dtype, device=obs.y.device))


def explicit_information(obs: Observations) -> RowInformation:
    """Form G and compute its eigenvectors, both in float64, so that the gains of unmeasured directions are exactly 0.

    Rounding would otherwise leave gains of about eps/σ_y², which count as measurements at large noise levels σ.
    """
    exact, size = obs.to(dtype=torch.float64), math.prod(obs.x_shape)
    noise, columns = exact.noise, measurement_matrices(exact).unbind(-1)
    gram = torch.stack(
        [exact.A.adjoint(noise.solve(a.reshape(exact.y.shape).contiguous())).flatten(1) for a in columns], -1
    )
    gains, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
    rank = min(size, obs.y[0].numel())
    gains, rows = gains[:, -rank:], vectors.mT[:, -rank:]
    negligible = size * torch.finfo(torch.float64).eps * gains[:, -1:]
    return RowInformation(torch.where(gains > negligible, gains, 0), rows)
