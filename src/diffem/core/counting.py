"""Numbers with their noun in messages: 1 lap, 2 laps."""

from __future__ import annotations


def count_of(n: int, noun: str, plural: str | None = None) -> str:
    """Return the number with the noun in the singular or plural.

    Args:
        n: The number.
        noun: The noun in the singular.
        plural: The plural. Default: the noun with an s.
    """
    return f"{n} {noun}" if n == 1 else f"{n} {plural or noun + 's'}"
