"""Observations y = Ax + e: the values, their operators and noise, in memory or on disk, and what is computed from them alone."""

from .observations import Observations
from .observations_file import open_large
from .problem import Problem

__all__ = ["Observations", "Problem", "open_large"]
