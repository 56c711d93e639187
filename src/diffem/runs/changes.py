"""What differs between two recipes, and which differences leave a run the same."""

from __future__ import annotations

from typing import Any

from .recipe import Recipe

LOCATIONS = {"path", "folder", "coils", "cache"}  # keys of `data` that name a place on disk, not what the data are


def moved(old: Recipe, new: Recipe) -> Recipe:
    """The old recipe with the places on disk that the new one names for its data."""
    places = {name: value for name, value in new.data.options("source").items() if name in LOCATIONS}
    return old.model_copy(update={"data": old.data.model_copy(update=places)})


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """`key: old → new` for every leaf that differs."""
    out: list[str] = []
    for key in [*old, *(k for k in new if k not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            out += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            out.append(f"{prefix}{key}: {a!r} → {b!r}")
    return out
