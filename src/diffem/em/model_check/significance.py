"""Significance levels of the warnings.

A run makes many tests, and a correct model should cause a warning in at most one run of twenty. Half of this level
belongs to the check of lap 0 and half to the later laps, and the tests of each share it equally (Bonferroni).
"""

from __future__ import annotations

from statistics import NormalDist

CHECK_LEVEL = 0.025  # probability of a false alarm in lap 0
LAPS_LEVEL = 0.025  # probability of a false alarm in all later laps


def one_sided(level: float) -> float:
    """Return the z that a standard normal variable exceeds with probability `level`."""
    return NormalDist().inv_cdf(1 - level)


def two_sided(level: float) -> float:
    """Return the z that the absolute value of a standard normal variable exceeds with probability `level`."""
    return one_sided(level / 2)
