"""Covariances and batched solvers."""

from .covariance import COVARIANCES, Covariance, Dense, Diagonal, Isotropic, LowRank, as_covariance
from .inner import axpy, dot
from .solvers import SOLVERS, Solution, Solver, Status, System, bicgstab, cg, direct, gmres

__all__ = [
    "COVARIANCES",
    "SOLVERS",
    "Covariance",
    "Dense",
    "Diagonal",
    "Isotropic",
    "LowRank",
    "Solution",
    "Solver",
    "Status",
    "System",
    "as_covariance",
    "axpy",
    "bicgstab",
    "cg",
    "direct",
    "dot",
    "gmres",
]
