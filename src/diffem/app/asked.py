"""What a request may ask for: how many and how long, checked before anything is done."""

from __future__ import annotations

import math
from typing import Any

from ..core.errors import InputError

# The most one request may ask for: the page answers one at a time.
LIMITS = {"samples": 256, "draws": 64, "steps": 1024, "seed": (1 << 31) - 1}


def whole(value: Any, name: str, low: int, high: int) -> int:
    """An integer between `low` and `high`, or a readable refusal."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if number != number or number != int(number) or not low <= number <= high:
        raise InputError(f"{name} must be a whole number from {low} to {high}, got {value!r}")
    return int(number)


def real(value: Any, name: str, low: float, high: float) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not low <= number <= high:
        raise InputError(f"{name} must be a number from {low:g} to {high:g}, got {value!r}")
    return number
