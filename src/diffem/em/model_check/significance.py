"""How far from its mean a standard normal number may lie before a run is flagged.

A run makes many tests, and the right model should be flagged in at most one run of twenty, by any of them. Half of
that is given to the check of the start and half to the laps, and within each every test gets the same share
(Bonferroni).
"""

from __future__ import annotations

from statistics import NormalDist

CHECK_LEVEL = 0.025  # false alarms of the check at the start
LAPS_LEVEL = 0.025  # and of all laps together


def one_sided(level: float) -> float:
    """The z that a standard normal number exceeds with probability `level`."""
    return NormalDist().inv_cdf(1 - level)


def two_sided(level: float) -> float:
    """The z beyond which a standard normal number lies, at either end, with probability `level`."""
    return one_sided(level / 2)
