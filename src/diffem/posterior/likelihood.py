r"""log q(y | x_t) of a posterior method: the twist of `samplers/tds.py`.

A method that estimates V[x | x_t] by V takes y | x_t for N(A x̂, M) with M = Σ_y + A V Aᵀ, so with e = y − A x̂ and M u = e

    log q(y | x_t) = −½ (eᵀu + log |M|) + constant,

and u is there already. A method without a covariance takes M = Σ_y. As σ_t → 0, V → 0 and x̂ → x_t: every one of these becomes the
likelihood, which is what makes weights built from them right in the end.

Energy and determinant are exact where M can be formed: by the solver `direct`, or when there are no more measured values than the solver has
iterations. Otherwise log |M| = tr log M is estimated by zᵀ log(M) z with one probe z of random signs and as many Lanczos steps as
the solver has iterations (Ubaru et al. 2017); that is exact for M = cI and close when M is nearly diagonal, as for masks. The probe
belongs to the draw: all its particles use the same one at every noise level, so the estimate is a fixed function of x_t and
an inexact determinant makes weights less equal but not wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import Observations
from ..linalg import System, dot
from ..linalg.inner import accumulate_dtype, axpy
from ..linalg.solvers.direct import direct
from ..linalg.tiny import eigh
from .base import Evaluation


def log_likelihood(evaluation: Evaluation, obs: Observations, probe: Tensor, iterations: int) -> Tensor:
    """log q(y | x_t) up to a constant per observation, `(n,)`; products with J that the determinant takes are counted.

    probe: `(n, *measurement)` of ±1.
    """
    if evaluation.log_likelihood is not None:
        return evaluation.log_likelihood
    assert evaluation.prior is not None
    residual = obs.residual(evaluation.prior)
    solution, system = evaluation.solution, evaluation.system
    if solution is None or system is None:
        return -0.5 * obs.noise.mahalanobis(residual)
    size = residual[0].numel()
    if solution.logdet is None and size <= iterations:
        solution = direct(system, residual)
        evaluation.vjps += size * evaluation.vjps_per_product
    if solution.logdet is not None and solution.energy is not None:
        return -0.5 * (solution.energy + solution.logdet)
    logdet = lanczos_logdet(system, probe, obs, iterations)
    evaluation.vjps += iterations * evaluation.vjps_per_product
    return -0.5 * (dot(residual, solution.u) + logdet)


def lanczos_logdet(system: System, probe: Tensor, obs: Observations, iterations: int) -> Tensor:
    """zᵀ log(M) z by Gauss quadrature: k steps of Lanczos from z, then Σ (first components)² · log(Ritz values), `(n,)`."""
    measured = obs.measured
    z = probe if measured is None else torch.where(measured, probe, 0)
    dtype = accumulate_dtype(z.device)
    n = len(z)
    norm = dot(z, z).sqrt()
    tridiagonal = torch.zeros(n, iterations, iterations, dtype=dtype, device=z.device)
    v = axpy(1 / norm.clamp(min=1), z, torch.zeros_like(z))
    basis = [v]
    alive = norm > 0
    for j in range(iterations):
        signal, _ = system.signal(v)
        w = signal + system.noise_matvec(v)
        diagonal = dot(v, w)
        # a step past the end of the space: unit rows, coupled to nothing
        tridiagonal[:, j, j] = torch.where(alive, diagonal, 1)
        size = dot(w, w).sqrt()
        for _ in range(2):
            for b in basis:
                w = axpy(-dot(b, w), b, w)
        beta = dot(w, w).sqrt()
        alive = alive & (beta > 1e2 * torch.finfo(z.dtype).eps * size)
        if j + 1 < iterations:
            beta = torch.where(alive, beta, 0)
            tridiagonal[:, j, j + 1] = tridiagonal[:, j + 1, j] = beta
            v = axpy(torch.where(alive, 1 / torch.where(alive, beta, 1), 0), w, torch.zeros_like(w))
            basis.append(v)
    values, vectors = eigh(torch.nan_to_num(tridiagonal))
    # M ⪰ Σ_y; a learned Jacobian may say otherwise, a variance may not
    floor = obs.noise.eigenvalue_floor()
    log_values = torch.maximum(values, floor.to(dtype).reshape(-1, 1)).log()
    return norm**2 * (vectors[:, 0] ** 2 * log_values).sum(-1)
