"""What differs between two recipes, and which differences leave a run the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from .schema import Recipe

LOCATIONS = {"path", "folder", "coils", "cache"}  # keys of `data` that name a place on disk, not what the data are


def moved(old: Recipe, new: Recipe) -> Recipe:
    """The old recipe with the places on disk that the new one names for its data."""
    places = {name: value for name, value in new.data.options("source").items() if name in LOCATIONS}
    return old.model_copy(update={"data": old.data.model_copy(update=places)})


def placed(recipe: Recipe, run: Path) -> Recipe:
    """The recipe as the run's folder keeps it: places on disk that are relative to the run if they lie in it, and absolute otherwise."""
    folder = run.absolute()

    def place(value: Any) -> Any:
        if not isinstance(value, str) or not value:
            return value
        path = Path(value).absolute()
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else str(path)

    return _with_places(recipe, place)


def located(recipe: Recipe, run: Path) -> Recipe:
    """The recipe of a run with its places on disk found from any working directory.

    Relative ones are relative to the run's folder; in folders of earlier versions, to the directory the run was started in.
    """

    def place(value: Any) -> Any:
        return str(run / value) if isinstance(value, str) and value and (run / value).exists() else value

    return _with_places(recipe, place)


def _with_places(recipe: Recipe, place: Callable[[Any], Any]) -> Recipe:
    options = recipe.data.options("source").items()
    places = {name: place(value) for name, value in options if name in LOCATIONS and not _is_word(name, value)}
    return recipe.model_copy(update={"data": recipe.data.model_copy(update=places)}) if places else recipe


def _is_word(name: str, value: Any) -> bool:
    """Whether a setting that may name a file is a word with a meaning of its own: coil maps may be estimated, or lie in the data."""
    return name == "coils" and isinstance(value, str) and (value == "estimate" or value.startswith("dataset "))


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
