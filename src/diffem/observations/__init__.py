"""Observations y = Ax + e: values, operators and noise, in memory or on disk, and functions of them alone."""

from .combined import concatenate
from .observations import COMBINERS, OPENERS, Observations
from .observations_file import open_large
from .problem import Problem

OPENERS.append(open_large)
COMBINERS.append(concatenate)

__all__ = ["Observations", "Problem"]
