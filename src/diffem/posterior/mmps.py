r"""Moment matching posterior sampling: V[x | x_t] from the Jacobian of the denoiser (the paper's Algorithm 3).

    V[x | x_t] = σ_t² J,      E[x | x_t, y] ≈ x̂ + σ_t² Jᵀ Aᵀ u,      (Σ_y + σ_t² A Jᵀ Aᵀ) u = y − A x̂.

Tweedie's covariance is exact, so for a Gaussian prior the estimate is exact once the system is solved. The solver
accumulates JᵀAᵀu from the products that it computes anyway: k iterations of cg or gmres cost one forward pass and k
vector–Jacobian products.

Rozet et al., Learning Diffusion Priors from Observations by Expectation Maximization, 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.shapes import per_sample
from .base import LinearisedDenoiser
from .evaluation import Evaluation
from .likelihood import SolvedEvaluation
from .solving import SolvingPosterior


@dataclass
class MMPS(SolvingPosterior):
    """Moment matching posterior sampling (MMPS, Rozet et al. 2024), with the options of `SolvingPosterior`."""

    method: ClassVar[str] = "mmps"

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        A = self.obs.A
        prior = LinearisedDenoiser(self.prior, x_t, sigma)
        residual = self.obs.residual(prior.x_hat)
        variance = per_sample(sigma, x_t) ** 2

        def signal(p: Tensor) -> tuple[Tensor, Tensor]:
            pullback = prior.vjp(A.adjoint(p))
            return A(variance * pullback), pullback

        system = self.system(signal, sigma)
        solution = self.solve(system, residual)
        return SolvedEvaluation(
            x_hat=prior.x_hat + variance * solution.pullback,
            solution=solution,
            vjps=prior.vjps,
            prior=prior.x_hat,
            system=system,
            vjps_per_product=1,
        )
