r"""Methods that replace V[x | x_t] by an explicit covariance.

With V explicit, the system (Σ_y + A V Aᵀ) u = y − A x̂ needs no Jacobian and is solved to a tolerance; only the last
factor of the likelihood's score, Jᵀ Aᵀ u, costs a vector–Jacobian product.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.shapes import per_sample
from ..linalg import ConvergenceWarning
from .base import LinearisedDenoiser
from .evaluation import Evaluation, Statistics
from .likelihood import SolvedEvaluation
from .solving import SolvingPosterior

ITERATIONS = 64
ACCURATE = 1e-3  # largest relative residual that causes no warning; draws of unsolved systems have 0.1 to 10


@dataclass
class ExplicitCovariance(SolvingPosterior):
    """Base of methods with an explicit covariance. By default, the system is solved to the precision of the dtype.

    Stopping earlier would save little compared with the network, and unconverged conjugate gradients amplify rounding.
    Draws with unconverged systems cause a warning, unless fewer iterations were chosen.
    """

    advice: ClassVar[str] = "use solver='direct' or more iterations"  # if systems did not converge

    iterations: int = ITERATIONS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.tolerance is None:
            self.tolerance = torch.finfo(self.obs.y.dtype).eps ** 0.75  # 2e-12 in float64, 6e-6 in float32

    def warn_of(self, statistics: Statistics, result: str = "draw") -> None:
        # solves that the guard stopped are counted in `guards`
        above = (statistics.residuals > ACCURATE) & (statistics.guards == 0)
        if self.iterations >= ITERATIONS and (count := int(above.sum())):
            largest, total = float(statistics.residuals[above].max()), count_of(above.numel(), result)
            warnings.warn(
                f"method {self.method!r}: systems of {count} of {total} did not converge within "
                f"{self.iterations} iterations (relative residual up to {largest:.1e}), so these {result}s only "
                f"approximate those of the method, and rounding errors can change them: {self.advice}",
                ConvergenceWarning,
                stacklevel=4,
            )

    def covariance(self, prior: LinearisedDenoiser, x_t: Tensor, sigma: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the function w ↦ Vw for batches `(n, *event)`."""
        raise NotImplementedError

    def correction(self, prior: LinearisedDenoiser, pullback: Tensor, sigma: Tensor) -> Tensor:
        """Compute the correction of x̂ from Aᵀu: σ² Jᵀ Aᵀ u, that is σ² times the score of the likelihood."""
        return per_sample(sigma, pullback) ** 2 * prior.vjp(pullback)

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        A = self.obs.A
        prior = LinearisedDenoiser(self.prior, x_t, sigma)
        residual = self.obs.residual(prior.x_hat)
        covariance = self.covariance(prior, x_t, sigma)

        def signal(p: Tensor) -> tuple[Tensor, Tensor]:
            pullback = A.adjoint(p)
            return A(covariance(pullback)), pullback

        system = self.system(signal, sigma)
        solution = self.solve(system, residual)
        x_hat = prior.x_hat + self.correction(prior, solution.pullback, sigma)
        return SolvedEvaluation(x_hat=x_hat, solution=solution, vjps=prior.vjps, prior=prior.x_hat, system=system)
