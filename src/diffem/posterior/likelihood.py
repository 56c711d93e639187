r"""log q(y | x_t) of a posterior method: the twist of `samplers/tds.py` before the last noise level.

A method that estimates V[x | x_t] by V assumes y | x_t ~ N(A x̂, M) with M = Σ_y + A V Aᵀ. With e = y − A x̂ and
M u = e,

    log q(y | x_t) = −½ (eᵀu + log |M|) + constant,

where u is already computed. A method without a covariance assumes M = Σ_y.

eᵀu and log |M| are exact if the matrix M is formed: by the solver `direct`, or if there are at most as many measured
values as solver iterations. Otherwise the error of eᵀu is that of the solve, and log |M| = tr log M is estimated by
zᵀ log(M) z with one probe z of random signs and as many Lanczos steps as the solver has iterations (Ubaru et al. 2017).
That is exact for M = cI and accurate if M is nearly diagonal, as for masks. For a scaled system (`solving.py`),
log |M| = log |SMS| − 2 log |S|, and the estimate uses SMS, which is closer to I. All particles of a draw use the same
probe at every noise level, so the twist is a fixed function of x_t. An error of the twist makes the weights less equal,
but the likelihood in the last weight, which needs no solve, corrects for it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..linalg import Solution, System, dot
from ..linalg.inner import accumulate_dtype, axpy
from ..linalg.solvers.direct import direct
from ..linalg.tiny import eigh
from ..observations import Observations
from .evaluation import GuidedEvaluation


@dataclass(kw_only=True)
class SolvedEvaluation(GuidedEvaluation):
    """An evaluation that solved M u = y − A x̂, M = Σ_y + A V Aᵀ.

    Attributes:
        solution: The solution.
        system: M.
        vjps_per_product: Vector–Jacobian products in a product with M.
    """

    solution: Solution
    system: System
    vjps_per_product: int = 0

    def log_likelihood(self, obs: Observations, probe: Tensor, iterations: int) -> Tensor:
        residual, solution = obs.residual(self.prior), self.solution
        size = residual[0].numel()
        if solution.logdet is None and size <= iterations:
            solution = direct(replace(self.system, scale=None), residual)
            self.vjps += size * self.vjps_per_product
        if solution.logdet is not None and solution.energy is not None:
            return -0.5 * (solution.energy + solution.logdet)
        logdet = lanczos_logdet(self.system, probe, obs, iterations)
        self.vjps += iterations * self.vjps_per_product
        return -0.5 * (dot(residual, solution.u) + logdet)


def lanczos_logdet(system: System, probe: Tensor, obs: Observations, iterations: int) -> Tensor:
    """Estimate log |M|, `(n,)`, from zᵀ log(SMS) z by Gauss quadrature.

    k Lanczos steps from z give Ritz values; the estimate is Σ (first components)² · log(Ritz values).
    """
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
        # steps beyond the end of the space get decoupled unit rows
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
    # M ⪰ Σ_y, which a learned Jacobian may violate
    scale = torch.ones_like(z[:1]) if system.scale is None else system.scale
    floor = obs.noise.eigenvalue_floor().to(dtype) * scale.flatten(1).to(dtype).square().amin(-1)
    log_values = torch.maximum(values, floor.reshape(-1, 1)).log()
    log_scale = scale.to(dtype).log()
    log_scale = (log_scale if measured is None else torch.where(measured, log_scale, 0)).flatten(1).sum(1)
    return norm**2 * (vectors[:, 0] ** 2 * log_values).sum(-1) - 2 * log_scale
