r"""The Gaussian of maximum likelihood in closed form, for complete observations with equal white noise.

With ȳ and S = QΛQᵀ the mean and covariance of the observations, Σ + σ_y²I equals S in the directions that vary more
than the noise; the other directions have variance 0 (Tipping & Bishop 1999):

    μ = ȳ,      Σ = Q max(Λ − σ_y², 0) Qᵀ.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..linalg import DenseCovariance, Isotropic
from ..observations.batches import Batches
from ..operators import Identity


def is_complete(batches: Batches) -> bool:
    """Whether all entries are observed directly, with one noise level."""
    first = batches.first()
    if not isinstance(first.A, Identity) or not isinstance(first.cov, Isotropic):
        return False
    variance = first.cov.diagonal(())
    return all(bool((part.cov.diagonal(()) == variance).all()) for part in batches)


def fit_complete(batches: Batches) -> tuple[Tensor, DenseCovariance, float]:
    """Fit mean and covariance; returns them and the log-likelihood per measured value."""
    first = batches.first()
    size, dtype = math.prod(first.x_shape), first.y.dtype
    mean = torch.zeros(size, dtype=torch.float64, device=batches.device)
    cov, count = torch.zeros(size, size, dtype=torch.float64, device=batches.device), 0
    for part in batches:
        mean += part.y.flatten(1).double().sum(0)
        count += len(part)
    mean /= count
    for part in batches:
        centred = part.y.flatten(1).double() - mean
        cov += centred.T @ centred
    values, vectors = torch.linalg.eigh(cov / count)
    values, noise = values.clamp(min=0), first.cov.diagonal(())[0].double()
    signal = (values - noise).clamp(min=0)
    total = signal + noise
    log_likelihood = -0.5 * float((values / total + total.log()).mean() + math.log(2 * math.pi))
    return (
        mean.reshape(first.x_shape).to(dtype),
        DenseCovariance.from_eigen(signal.to(dtype), vectors.to(dtype)),
        log_likelihood,
    )
