"""One Gaussian for all adapters: a prior, its denoiser written independently, and the posterior by dense algebra."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diffem import Observations, priors

from ..exact import gaussian_posterior_mean, matrix_of, random_covariance

SIGMA_Y = 0.3


def gaussian(x_shape: tuple[int, ...]) -> tuple[priors.GaussianPrior, Tensor]:
    mean = torch.randn(x_shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    cov = random_covariance(math.prod(x_shape))
    return priors.GaussianPrior(mean, cov), cov


def denoised(mean: Tensor, cov: Tensor, u_t: Tensor, sigma: Tensor | float) -> Tensor:
    """E[u | u_t] for u ~ N(mean, cov), sample by sample."""
    levels = torch.as_tensor(sigma, dtype=torch.float64).expand(len(u_t))
    eye = torch.eye(len(cov), dtype=torch.float64)
    flat = (u_t - mean).flatten(1)
    gain = torch.stack([torch.linalg.solve(cov + s**2 * eye, cov) for s in levels])
    return mean + (gain.mT @ flat.unsqueeze(-1)).reshape(u_t.shape)


def exact_posterior(mean: Tensor, cov: Tensor, obs: Observations, x_t: Tensor, sigma: float) -> Tensor:
    """E[x | x_t, y] in information form; unmeasured rows are zero rows of A and need no special case."""
    n = len(x_t)
    matrix = matrix_of(obs.A, tuple(x_t.shape[1:]), n)
    variances = obs.cov.diagonal(tuple(obs.y.shape[1:])).expand(obs.y.shape).flatten(1)
    flat = gaussian_posterior_mean(
        mean.flatten(), cov, x_t.flatten(1), sigma, obs.y.flatten(1), matrix, torch.diag_embed(variances)
    )
    return flat.reshape(x_t.shape)


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm())
