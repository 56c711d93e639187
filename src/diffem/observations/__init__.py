"""Observations y = Ax + e: the values, their operators and noise, in memory or on disk, and what is computed from them alone."""

from .observations import OPENERS, Observations
from .observations_file import open_large
from .problem import Problem

OPENERS.append(open_large)

__all__ = ["Observations", "Problem"]
