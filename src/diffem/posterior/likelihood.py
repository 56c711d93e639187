r"""log q(y | x_t) of a posterior method: the twist of `samplers/tds.py` before the last level.

A method that estimates V[x | x_t] by V takes y | x_t for N(A x̂, M) with M = Σ_y + A V Aᵀ, so with e = y − A x̂ and M u = e

    log q(y | x_t) = −½ (eᵀu + log |M|) + constant,

and u is there already. A method without a covariance takes M = Σ_y.

Energy and determinant are exact where M can be formed: by the solver `direct`, or when there are no more measured values than the solver has
iterations. Otherwise eᵀu is as far from eᵀM⁻¹e as the solve is from convergence, and log |M| = tr log M is estimated by zᵀ log(M) z with one probe
z of random signs and as many Lanczos steps as the solver has iterations (Ubaru et al. 2017); that is exact for M = cI and close when M is
nearly diagonal, as for masks. A system that is scaled (`solving.py`) has log |M| = log |SMS| − 2 log |S|, and the probe sees SMS, which is
closer to I. The probe belongs to the draw: all its particles use the same one at every noise level, so the twist is a fixed function of
x_t. It only guides: an error in it makes the weights less equal, and the likelihood in the last weight, which needs no solve, corrects for it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..linalg import System, dot
from ..linalg.inner import accumulate_dtype, axpy
from ..linalg.solvers.direct import direct
from ..linalg.tiny import eigh
from ..observations import Observations
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
        solution = direct(replace(system, scale=None), residual)
        evaluation.vjps += size * evaluation.vjps_per_product
    if solution.logdet is not None and solution.energy is not None:
        return -0.5 * (solution.energy + solution.logdet)
    logdet = lanczos_logdet(system, probe, obs, iterations)
    evaluation.vjps += iterations * evaluation.vjps_per_product
    return -0.5 * (dot(residual, solution.u) + logdet)


def lanczos_logdet(system: System, probe: Tensor, obs: Observations, iterations: int) -> Tensor:
    """log |M|, `(n,)`, from zᵀ log(SMS) z by Gauss quadrature: k steps of Lanczos from z, then Σ (first components)² · log(Ritz values)."""
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
        signal, noise, _ = system.product(v)
        w = signal + noise
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
    scale = torch.ones_like(z[:1]) if system.scale is None else system.scale
    floor = obs.noise.eigenvalue_floor().to(dtype) * scale.flatten(1).to(dtype).square().amin(-1)
    log_values = torch.maximum(values, floor.reshape(-1, 1)).log()
    log_scale = scale.to(dtype).log()
    log_scale = (log_scale if measured is None else torch.where(measured, log_scale, 0)).flatten(1).sum(1)
    return norm**2 * (vectors[:, 0] ** 2 * log_values).sum(-1) - 2 * log_scale
