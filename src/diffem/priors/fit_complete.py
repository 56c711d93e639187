r"""Observations of everything, all with the same white noise: the Gaussian of maximum likelihood in closed form.

With ȳ and S = QΛQᵀ the mean and covariance of the observations, Σ + σ_y²I equals S in the directions that vary more than the noise; the
others have no variance of their own (Tipping & Bishop 1999):

    μ = ȳ,      Σ = Q max(Λ − σ_y², 0) Qᵀ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..data import Observations
from ..linalg import Dense, Isotropic
from ..operators import Identity


def is_complete(obs: Observations) -> bool:
    """Whether every entry is measured as it is, with one noise level."""
    first = obs[:1]
    return isinstance(first.A, Identity) and isinstance(first.cov, Isotropic) and obs.cov.batch is None


def fit_complete(obs: Observations, batch: int = 4096) -> tuple[Tensor, Dense, float]:
    """Mean, covariance, and the log-likelihood per measured value."""
    size, parts = math.prod(obs.x_shape), [obs[i : i + batch].y.flatten(1) for i in range(0, len(obs), batch)]
    mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(obs)
    cov = torch.zeros(size, size, dtype=torch.float64, device=mean.device)
    for part in parts:
        centred = part.double() - mean
        cov += centred.T @ centred
    values, vectors = torch.linalg.eigh(cov / len(obs))
    values, noise = values.clamp(min=0), obs.cov.diagonal(())[0].double()
    signal = (values - noise).clamp(min=0)
    total = signal + noise
    log_likelihood = -0.5 * float((values / total + total.log()).mean() + math.log(2 * math.pi))
    dtype = obs.y.dtype
    return mean.reshape(obs.x_shape).to(dtype), Dense.from_eigen(signal.to(dtype), vectors.to(dtype)), log_likelihood
