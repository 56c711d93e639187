r"""The information G = AᵀΣ_y⁻¹A of observations: in a basis known beforehand, with computed eigenvectors, or by products with A."""

from __future__ import annotations

import math

import torch

from ..operators.spectrum import Information, Rows
from .krylov import Krylov
from .observations import Observations

EXPLICIT = 256  # numbers in a sample up to which G is formed and diagonalised


def information_of(obs: Observations) -> Information:
    """G of the observations: in a known basis where there is one, with its eigenvectors if samples are small, matrix-free otherwise."""
    known = obs.information()
    if known is not None:
        return known
    if math.prod(obs.x_shape) <= EXPLICIT:
        return explicit_information(obs)
    return matrix_free_information(obs)


def matrix_free_information(obs: Observations) -> Krylov:
    """Functions of G from products with A and Aᵀ."""
    return Krylov(obs.A, obs.noise, obs.y, obs.x_shape, torch.ones((), dtype=obs.y.dtype, device=obs.y.device))


def explicit_information(obs: Observations) -> Rows:
    """G column by column and its eigenvectors, in float64: what nothing measured must come out as 0, whatever the noise.

    Rounding would otherwise leave gains of about eps/σ_y² there, which large noise levels σ take for measurements.
    """
    exact, n, size = obs.to(dtype=torch.float64), len(obs), math.prod(obs.x_shape)
    noise, columns = exact.noise, []
    for e in torch.eye(size, dtype=torch.float64, device=obs.y.device):
        x = e.reshape(1, *obs.x_shape).expand(n, *obs.x_shape)
        columns.append(exact.A.adjoint(noise.solve(exact.A(x))).flatten(1))
    gram = torch.stack(columns, -1)
    gains, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
    rank = min(size, obs.y[0].numel())
    gains, rows = gains[:, -rank:], vectors.mT[:, -rank:]
    negligible = size * torch.finfo(torch.float64).eps * gains[:, -1:]
    return Rows(torch.where(gains > negligible, gains, 0).to(obs.y), rows.to(obs.y))
