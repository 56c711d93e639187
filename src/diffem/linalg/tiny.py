r"""Eigenvalues and solutions of a batch of small matrices; up to 2×2 in closed form.

Routines of torch.linalg check on the host whether they succeeded. On a GPU that synchronises at every step and cannot
be captured, so systems of one or two measured values are solved in closed form.
"""

from __future__ import annotations

import torch
from torch import Tensor

CLOSED_FORM = 2  # up to this size there is no synchronisation with the device


def eigh(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Ascending eigenvalues `(n, m)` and eigenvectors, as columns `(n, m, m)`, of symmetric matrices `(n, m, m)`."""
    size = matrix.shape[-1]
    if size == 1:
        return matrix[..., 0], torch.ones_like(matrix)
    if size > CLOSED_FORM:
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    a, b, d = matrix[..., 0, 0], matrix[..., 0, 1], matrix[..., 1, 1]
    centre, half = (a + d) / 2, (a - d) / 2
    radius, angle = torch.hypot(half, b), torch.atan2(b, half) / 2
    cos, sin = angle.cos(), angle.sin()
    vectors = torch.stack([torch.stack([-sin, cos], -1), torch.stack([cos, sin], -1)], -1)
    return torch.stack([centre - radius, centre + radius], -1), vectors


def solve(matrix: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Solve M u = b for M `(n, m, m)`, b `(n, m)`; returns u, log |det M| and whether M is regular."""
    size = matrix.shape[-1]
    if size > CLOSED_FORM:
        factors, pivots, info = torch.linalg.lu_factor_ex(matrix)
        u = torch.linalg.lu_solve(factors, pivots, b.unsqueeze(-1)).squeeze(-1)
        return u, factors.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1), info == 0
    if size == 1:
        pivot = matrix[..., 0, 0]
        return b / pivot.unsqueeze(-1), pivot.abs().log(), pivot != 0
    # elimination, the row with the larger first entry on top
    swapped = (matrix[..., 1, 0].abs() > matrix[..., 0, 0].abs()).unsqueeze(-1)
    rows = torch.cat([matrix, b.unsqueeze(-1)], -1)  # (n, 2, 3)
    top = torch.where(swapped, rows[..., 1, :], rows[..., 0, :])
    bottom = torch.where(swapped, rows[..., 0, :], rows[..., 1, :])
    bottom = bottom - bottom[..., :1] / top[..., :1] * top
    second = bottom[..., 2] / bottom[..., 1]
    first = (top[..., 2] - top[..., 1] * second) / top[..., 0]
    determinant = top[..., 0] * bottom[..., 1]
    regular = (determinant != 0) & torch.isfinite(determinant)
    return torch.stack([first, second], -1), determinant.abs().log(), regular
