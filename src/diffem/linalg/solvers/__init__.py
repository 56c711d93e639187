"""Batched linear solvers; a new one is a file and a line in `SOLVERS`."""

from .bicgstab import bicgstab
from .cg import cg
from .convergence import ConvergenceMonitor, ConvergenceWarning
from .direct import direct
from .gmres import gmres
from .system import Solution, Solver, Status, System

SOLVERS: dict[str, Solver] = {"cg": cg, "gmres": gmres, "bicgstab": bicgstab, "direct": direct}

__all__ = [
    "SOLVERS",
    "ConvergenceMonitor",
    "ConvergenceWarning",
    "Solution",
    "Solver",
    "Status",
    "System",
    "bicgstab",
    "cg",
    "direct",
    "gmres",
]
