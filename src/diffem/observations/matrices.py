"""A and Σ_y as dense matrices, for small problems."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .observations import Observations


def measurement_matrices(obs: Observations) -> Tensor:
    """Form A as dense matrices `(n, m, N)` in float64, column by column."""
    n, shape, size = len(obs), obs.x_shape, math.prod(obs.x_shape)
    matrices = torch.empty(n, obs.y[0].numel(), size, dtype=torch.float64, device=obs.y.device)
    for k in range(size):
        e = torch.zeros(size, dtype=obs.y.dtype, device=obs.y.device)
        e[k] = 1
        matrices[..., k] = obs.A(e.reshape(1, *shape).expand(n, *shape).contiguous()).flatten(1)
    return matrices


def noise_matrices(obs: Observations) -> tuple[Tensor, Tensor]:
    """Form Σ_y as `(n, m, m)` in float64, and a mask `(n, m)` of the entries that are not measured.

    Unmeasured entries get unit noise. Their residual and their row of A are zero, so they contribute nothing.
    """
    n, shape, noise, measured = len(obs), tuple(obs.y.shape[1:]), obs.to(torch.float64).noise, obs.measured
    eye = torch.eye(math.prod(shape), dtype=torch.float64, device=obs.y.device)
    sigma_y = torch.stack([noise.matvec(e.reshape(1, *shape).expand(n, *shape)).flatten(1) for e in eye], -1)
    measured = torch.ones_like(obs.y, dtype=torch.bool) if measured is None else measured.expand_as(obs.y)
    outside = ~measured.flatten(1)
    return sigma_y + torch.diag_embed(outside.double()), outside
