"""Dense algebra for comparisons, written independently of the library and in float64."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def matrix_of(A, x_shape: tuple[int, ...], n: int) -> Tensor:
    """The matrices of an operator, `(n, m, N)`, column by column."""
    size = math.prod(x_shape)
    columns = []
    for j in range(size):
        e = torch.zeros(n, size, dtype=torch.float64)
        e[:, j] = 1
        columns.append(A(e.reshape(n, *x_shape)).flatten(1))
    return torch.stack(columns, -1)


def gaussian_posterior_mean(mean, cov, x_t, sigma, y, matrix, cov_y) -> Tensor:
    """E[x | x_t, y] for x ~ N(mean, cov), in information form: precisions add.

    Args:
        mean: (N,). Mean of the prior.
        cov: (N, N). Covariance of the prior.
        x_t: (n, N). Noisy samples.
        sigma: A number or (n,). Diffusion noise level.
        y: (n, m). Measured values.
        matrix: (n, m, N). Operators.
        cov_y: (n, m, m). Covariances of the measurement noise.
    """
    n, size = x_t.shape
    sigma = torch.as_tensor(sigma, dtype=torch.float64).expand(n)
    prior = torch.linalg.inv(cov)
    out = []
    for i in range(n):
        weight = torch.linalg.solve(cov_y[i], matrix[i]).T  # Aᵀ Σ_y⁻¹
        precision = prior + torch.eye(size, dtype=torch.float64) / sigma[i] ** 2 + weight @ matrix[i]
        information = prior @ mean + x_t[i] / sigma[i] ** 2 + weight @ y[i]
        out.append(torch.linalg.solve(precision, information))
    return torch.stack(out)


def textbook_cg(matrix: Tensor, b: Tensor, iterations: int) -> Tensor:
    """Conjugate gradients on one dense symmetric system, as in any textbook."""
    x = torch.zeros_like(b)
    r = b.clone()
    p = r.clone()
    for _ in range(iterations):
        mp = matrix @ p
        alpha = (r @ r) / (p @ mp)
        x = x + alpha * p
        r_next = r - alpha * mp
        p = r_next + (r_next @ r_next) / (r @ r) * p
        r = r_next
    return x


def random_covariance(size: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return root @ root.T / size + 0.05 * torch.eye(size, dtype=torch.float64)
