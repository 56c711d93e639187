"""A warning if a solve whose result is used as exact did not converge."""

import warnings

from ...core.counting import count_of
from .system import Solution, Status


class ConvergenceWarning(RuntimeWarning):
    """An iterative solve ended before its residual reached the tolerance."""


class ConvergenceMonitor:
    """Counts the solves of one purpose that ended with a residual ‖b − Mu‖/‖b‖ above the tolerance, and warns of them.

    Args:
        name: The purpose of the solves, for the message of the warning.
    """

    def __init__(self, name: str, tolerance: float) -> None:
        self.name, self.tolerance = name, tolerance
        self.reset()

    def reset(self) -> None:
        self.count, self.total, self.iterations, self.residual = 0, 0, 0, 0.0

    def add(self, solution: Solution) -> None:
        above = (solution.status != Status.CONVERGED) & ~(solution.residual <= self.tolerance)
        self.total += len(above)
        if count := int(above.sum()):
            self.count += count
            self.iterations = max(self.iterations, int(solution.iterations[above].max()))
            self.residual = max(self.residual, float(solution.residual[above].max()))

    def warn(self) -> None:
        if self.count:
            warnings.warn(
                f"{self.name}: {self.count} of {count_of(self.total, 'system')} did not converge within "
                f"{count_of(self.iterations, 'iteration')} (relative residual up to {self.residual:.1e}, required: "
                f"{self.tolerance:.1e})",
                ConvergenceWarning,
                stacklevel=3,
            )
