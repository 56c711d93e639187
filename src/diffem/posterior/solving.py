r"""Methods that solve (Σ_y + A V Aᵀ) u = y − A x̂.

If the variances of the noise differ widely, so do the eigenvalues of M = Σ_y + A V Aᵀ. A few iterations resolve the
largest ones and miss the most precise values. The system is therefore scaled by S = (diag Σ_y + σ_t² g)^-½, where g is
the squared norm of the rows of A (`operators/gain.py`) and σ_t² bounds V where x_t is informative: S M S has
eigenvalues near 1 both at small σ_t, where M ≈ Σ_y, and at large. With equal variances S would be a multiple of I and
have no effect, unless y is so small or large that products with M leave the range of its dtype: S is then a power of
two, which changes no other digit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.shapes import per_sample
from ..linalg import SOLVERS, Isotropic, Solution, System
from ..linalg.tiny import CLOSED_FORM
from ..observations import Observations
from ..operators.gain import mean_gain
from ..priors.base import require_count
from ..samplers import Sampler
from .base import Posterior

ORDINARY = 16  # largest |log₂ σ_y| for which the system is not rescaled


def unit_of(cov: Isotropic) -> float | None:
    """The power of two closest to the noise level; None if it is not far from 1, so that nothing need be rescaled."""
    exponent = round(float(cov.diagonal(()).double().log2().mean()) / 2)
    return None if abs(exponent) <= ORDINARY else 2.0**exponent


@dataclass
class SolvingPosterior(Posterior):
    """Base of methods that solve (Σ_y + A V Aᵀ) u = y − A x̂.

    The observations are replaced by equivalent ones with orthonormal rows if possible (`Observations.reduced`).

    Attributes:
        solver: A name of `linalg.SOLVERS`.
        iterations: Largest number of iterations.
        tolerance: Relative residual at which the solver stops earlier. Default: it runs all iterations.
        guard: Whether the curvature guard is on.
    """

    reduces: ClassVar[bool] = True

    solver: str = "cg"
    iterations: int = 3
    tolerance: float | None = None
    guard: bool = True
    _gain: Tensor | None = field(init=False, repr=False, default=None)  # g, broadcastable to y
    _unit: float | None = field(init=False, repr=False, default=None)  # 1/S for equal variances

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.solver not in SOLVERS:
            raise InputError(f"unknown solver {self.solver!r}; known: {', '.join(SOLVERS)}")
        require_count(self.iterations, "iterations")
        if not isinstance(self.guard, bool):
            raise InputError(f"guard must be True or False, got {self.guard!r}")
        if self.tolerance is not None and not 0 < self.tolerance < 1:
            raise InputError(f"tolerance must lie in (0, 1), got {self.tolerance}")

    def observe(self, obs: Observations) -> None:
        super().observe(obs)
        equal = isinstance(obs.cov, Isotropic) or self.solver == "direct"
        self._gain = None if equal else mean_gain(obs.A, obs.y)
        self._unit = unit_of(obs.cov) if isinstance(obs.cov, Isotropic) and self.solver != "direct" else None

    def system(self, signal: Callable[[Tensor], tuple[Tensor, Tensor]], sigma: Tensor) -> System:
        """Make the system M at noise level sigma, scaled if the variances of the noise differ; signal: see `System`."""
        scale = None
        if self._gain is not None:
            variances = self.noise.diagonal(tuple(self.obs.y.shape[1:]))
            scale = (variances + per_sample(sigma, variances) ** 2 * self._gain).rsqrt()
        elif self._unit is not None:
            scale = torch.full_like(self.obs.y[:1], 1 / self._unit)
        return System(signal, self.noise, scale)

    def solve(self, system: System, residual: Tensor) -> Solution:
        """Solve M u = residual by the method's solver. The statistics are those of the scaled system."""
        solution = SOLVERS[self.solver](
            system, system.scaled(residual), iterations=self.iterations, tolerance=self.tolerance, guard=self.guard
        )
        return replace(solution, u=system.scaled(solution.u))

    @property
    def likelihood_iterations(self) -> int:
        return self.iterations

    def capturable(self, sampler: Sampler) -> bool:
        # checks of a tolerance, small least-squares problems and larger eigenvalue problems synchronise with the device
        measured, decomposed = self.obs.y[0].numel(), 0
        if self.solver == "direct":
            decomposed = measured
        elif sampler.needs_likelihood:  # for log |M|
            decomposed = min(measured, self.iterations)
        return self.tolerance is None and self.solver != "gmres" and decomposed <= CLOSED_FORM
