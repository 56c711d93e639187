"""Covariances and batched solvers."""

from .covariance import Covariance, Diagonal, Isotropic
from .dense import DenseCovariance
from .dense import DenseCovariance as Dense  # noqa: F401  # the name in earlier versions
from .inner import axpy, dot
from .kinds import COVARIANCES, as_covariance
from .low_rank import LowRank
from .simulated import SimulatedNoise
from .solvers import (
    SOLVERS,
    ConvergenceWarning,
    Solution,
    Solver,
    Status,
    System,
    bicgstab,
    cg,
    direct,
    gmres,
)
from .unknown import UnknownNoise

__all__ = [
    "COVARIANCES",
    "SOLVERS",
    "ConvergenceWarning",
    "Covariance",
    "DenseCovariance",
    "Diagonal",
    "Isotropic",
    "LowRank",
    "SimulatedNoise",
    "Solution",
    "Solver",
    "Status",
    "System",
    "UnknownNoise",
    "as_covariance",
    "axpy",
    "bicgstab",
    "cg",
    "direct",
    "dot",
    "gmres",
]
