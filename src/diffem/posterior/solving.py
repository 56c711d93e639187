r"""Methods that solve (Σ_y + A V Aᵀ) u = y − A x̂.

If the variances of the noise differ widely, so do the eigenvalues of M = Σ_y + A V Aᵀ. A few iterations resolve the
largest ones and miss the most precise values. The system is therefore scaled by S = (diag Σ_y + σ_t² g)^-½, where g is
the squared norm of the rows of A (`operators/gain.py`) and σ_t² bounds V where x_t is informative: S M S has
eigenvalues near 1 both at small σ_t, where M ≈ Σ_y, and at large. With equal variances S would be a multiple of I and
have no effect.
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
from ..samplers import Sampler
from .base import Posterior


@dataclass
class SolvingPosterior(Posterior):
    """A method that solves (Σ_y + A V Aᵀ) u = y − A x̂. Observations are reduced if possible (`Observations.reduced`).

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

    def __post_init__(self) -> None:
        super().__post_init__()
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
        """Make the system M at noise level sigma, scaled if the variances of the noise differ; signal: see `System`."""
        scale = None
        if self._gain is not None:
            variances = self.noise.diagonal(tuple(self.obs.y.shape[1:]))
            scale = (variances + per_sample(sigma, variances) ** 2 * self._gain).rsqrt()
        return System(signal, self.noise, scale)

    def solve(self, system: System, residual: Tensor) -> Solution:
        """Solve M u = residual by the method's solver. The statistics are those of the scaled system."""
        b = system.scaled(residual)
        # `direct` needs no unit: it solves in float64, and returns an energy in the units of b
        unit = per_sample(torch.ones_like(b.flatten(1)[:, 0]) if self.solver == "direct" else _binary_unit(b), b)
        solution = SOLVERS[self.solver](
            system, b / unit, iterations=self.iterations, tolerance=self.tolerance, guard=self.guard
        )
        pullback = per_sample(unit.flatten(), solution.pullback) * solution.pullback
        return replace(solution, u=unit * system.scaled(solution.u), pullback=pullback)

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


def _binary_unit(b: Tensor) -> Tensor:
    """The power of two next to the largest entry of each b, `(n,)`; 1 if b is 0 or not finite.

    In these units products with M do not leave the range of float32, whatever the units of y and x are, and rounding is
    the same as without them.
    """
    largest = b.flatten(1).abs().amax(1)
    usable = torch.isfinite(largest) & (largest > 0)
    return torch.ldexp(torch.ones_like(largest), torch.where(usable, largest, 1).log2().floor())
