"""Limits on the numbers in a request, checked before any computation starts."""

from __future__ import annotations

import math
from typing import Any

from ..core.errors import InputError

# Largest values of one request: the page answers one request at a time, so a long one blocks the others.
LIMITS = {"samples": 256, "draws": 64, "steps": 1024, "seed": (1 << 31) - 1}


def whole(value: Any, name: str, low: int, high: int) -> int:
    """Convert a value to an integer.

    Raises:
        InputError: If the value is not a whole number from `low` to `high`.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if number != number or number != int(number) or not low <= number <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
    return int(number)


def real(value: Any, name: str, low: float, high: float) -> float:
    """Convert a value to a float.

    Raises:
        InputError: If the value is not a number from `low` to `high`.
    """
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise InputError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
    return number
