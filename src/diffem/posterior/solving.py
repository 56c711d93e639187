r"""Methods that solve (Σ_y + A V Aᵀ) u = y − A x̂.

With noise of very different variances, M = Σ_y + A V Aᵀ has eigenvalues of very different sizes, and a few iterations, which start with
the largest, miss what the precise values say. The system is therefore scaled by S = (diag Σ_y + σ_t² g)^-½, where g is the squared norm of the
rows of A (`operators/gain.py`) and σ_t² bounds V where x_t is informative: S M S has eigenvalues near 1 both at small σ_t, where M ≈ Σ_y, and at
large. With equal variances S would be a multiple of I and change nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import per_sample
from ..linalg import SOLVERS, Isotropic, Solution, System
from ..linalg.tiny import CLOSED_FORM
from ..observations import Observations
from ..operators.gain import mean_gain
from ..samplers import TDS, Sampler
from .base import Posterior


@dataclass
class SolvingPosterior(Posterior):
    """A method that solves (Σ_y + A V Aᵀ) u = y − A x̂, with the observations reduced (see `Observations.reduced`) where they can be.

    solver: a name of `linalg.SOLVERS`; it stops after `iterations`, or earlier at a relative residual of `tolerance`;
    guard: whether the curvature guard is on.
    """

    solver: str = "cg"
    iterations: int = 3
    tolerance: float | None = None
    guard: bool = True
    _gain: Tensor | None = field(init=False, repr=False, default=None)  # g, broadcastable to y

    def __post_init__(self) -> None:
        super().__post_init__()
        self.observe(self.obs.reduced())
        if self.solver not in SOLVERS:
            raise InputError(f"unknown solver {self.solver!r}; known: {', '.join(SOLVERS)}")
        if not isinstance(self.iterations, int) or self.iterations < 1:
            raise InputError(f"iterations must be a positive integer, got {self.iterations!r}")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise InputError(f"tolerance must lie in (0, 1), got {self.tolerance}")

    def observe(self, obs: Observations) -> None:
        super().observe(obs)
        equal = isinstance(obs.cov, Isotropic) or self.solver == "direct"
        self._gain = None if equal else mean_gain(obs.A, obs.y)

    def system(self, signal: Callable[[Tensor], tuple[Tensor, Tensor]], sigma: Tensor) -> System:
        """M at noise level sigma, scaled if the variances of the noise differ; signal: see `System`."""
        scale = None
        if self._gain is not None:
            variances = self.noise.diagonal(tuple(self.obs.y.shape[1:]))
            scale = (variances + per_sample(sigma, variances) ** 2 * self._gain).rsqrt()
        return System(signal, self.noise, scale)

    def solve(self, system: System, residual: Tensor) -> Solution:
        """u with M u = residual by the method's solver, whose statistics are those of the scaled system."""
        solution = SOLVERS[self.solver](
            system, system.scaled(residual), iterations=self.iterations, tolerance=self.tolerance, guard=self.guard
        )
        return replace(solution, u=system.scaled(solution.u))

    def capturable(self, sampler: Sampler) -> bool:
        # a tolerance asks how far the solve is; small least squares and larger eigenvalue problems ask whether they succeeded
        measured, decomposed = self.obs.y[0].numel(), 0
        if self.solver == "direct":
            decomposed = measured
        elif isinstance(sampler, TDS):  # for log |M|
            decomposed = min(measured, self.iterations)
        return self.tolerance is None and self.solver != "gmres" and decomposed <= CLOSED_FORM
