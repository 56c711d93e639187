"""Differences between recipes, and what may change without making another run: paths and the description."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .schema import Recipe

LOCATIONS = {"path", "folder", "coils", "cache"}  # keys of `data` that are paths


def with_paths_of(old: Recipe, new: Recipe) -> Recipe:
    """Return the old recipe with the paths of the new one."""
    paths = {name: value for name, value in new.data.options("source").items() if name in LOCATIONS}
    return old.model_copy(update={"data": old.data.model_copy(update=paths)})


def with_description_of(old: Recipe, new: Recipe) -> Recipe:
    """Return the old recipe with the description of the new one."""
    return old.model_copy(update={"about": new.about})


def with_stored_paths(recipe: Recipe, run: Path) -> Recipe:
    """Return the recipe as it is stored: paths inside the run folder are relative to it, others are absolute."""
    folder = run.absolute()

    def place(value: Any) -> Any:
        if not isinstance(value, str) or not value:
            return value
        path = Path(value).absolute()
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

    return _map_paths(recipe, place)


def with_usable_paths(recipe: Recipe, run: Path) -> Recipe:
    """Return the stored recipe of a run with paths that are valid in the current working directory.

    Relative paths are relative to the run folder. In folders of earlier versions they are relative to the directory in
    which the run was started.
    """

    def place(value: Any) -> Any:
        return str(run / value) if isinstance(value, str) and value and (run / value).exists() else value

    return _map_paths(recipe, place)


def _map_paths(recipe: Recipe, place: Callable[[Any], Any]) -> Recipe:
    options = recipe.data.options("source").items()
    places = {name: place(value) for name, value in options if name in LOCATIONS and not _is_word(name, value)}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=places)}) if places else recipe


def _is_word(name: str, value: Any) -> bool:
    """Whether the value of a path key is a keyword: coil maps may be estimated, or part of the data."""
    return name == "coils" and isinstance(value, str) and (value == "estimate" or value.startswith("dataset "))


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Return `key: old → new` for every value that differs."""
    out: list[str] = []
    for key in [*old, *(k for k in new if k not in old)]:
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            out += differences(a, b, f"{prefix}{key}.")
        elif a != b:
            out.append(f"{prefix}{key}: {a!r} → {b!r}")
    return out
