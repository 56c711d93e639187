"""Limits on the numbers in a request, checked before any computation starts."""

from __future__ import annotations

import math
from typing import Any

from ..core.errors import InputError

# Largest values of one request: the page answers one request at a time, so a long one blocks the others.
LIMITS = {"samples": 256, "draws": 64, "steps": 1024, "seed": (1 << 31) - 1}


def whole(value: Any, name: str, low: int, high: int) -> int:
    """Convert a value to an integer; raises `InputError` if it is not a whole number from `low` to `high`."""
    number = _number(value)
    if not low <= number <= high or number != int(number):
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
    return int(number)


def real(value: Any, name: str, low: float, high: float) -> float:
    """Convert a value to a float; raises `InputError` if it is not a number from `low` to `high`."""
    number = _number(value)
    if not low <= number <= high:
        raise InputError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
    return number


def _number(value: Any) -> float:
    """The value as a float; NaN, which lies in no range, if it is not a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        return math.nan
