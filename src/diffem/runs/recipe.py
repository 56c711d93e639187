"""Recipes by name and from files: built-in recipes, YAML files and mappings. `sections.py` has the keys."""

from __future__ import annotations

import reprlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..core.errors import InputError
from ..files.plain_yaml import YAML_BYTES, parse_yaml
from ..files.reading import digest, read_text
from ..observations.observations_file import TABLES, about_table
from .earlier_keys import translate
from .recipe_errors import explain
from .schedule import Epochs, Schedule
from .schema import CHECKSUM, RUN, Recipe
from .sections import Data, EStep, Gaussian, Network, Noise, Train, Watch
from .stages import set_key

__all__ = [
    "Data",
    "EStep",
    "Epochs",
    "Gaussian",
    "Network",
    "Noise",
    "Recipe",
    "Schedule",
    "Train",
    "Watch",
    "has_checksum",
    "is_written_by_run",
    "load_recipe",
    "name_of_run",
    "names",
    "parse_change",
]


DATA = (".npy", ".npz", ".safetensors")  # suffixes of data files, which are often passed in place of a recipe


def names() -> list[str]:
    """Return the names of the built-in recipes."""
    folder = files("diffem.runs") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(recipe: str | Path | dict[str, Any] | Recipe, changes: dict[str, Any] | None = None) -> Recipe:
    """Load and validate a recipe.

    Args:
        recipe: The name of a built-in recipe, the path of a YAML file, or a mapping.
        changes: Values of keys such as `train.lr` that replace those of the recipe.

    Raises:
        InputError: If there is no such recipe, or a key or value is invalid.
    """
    if isinstance(recipe, Recipe):
        values, where = recipe.model_dump(), recipe.name
    elif isinstance(recipe, dict):
        values, where = dict(recipe), "recipe"
    else:
        values, where = _read(str(recipe)), str(recipe)
    for key, value in (changes or {}).items():
        set_key(values, key, value)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{where}: {explain(error, Recipe)}") from None


def _read(recipe: str) -> dict[str, Any]:
    if recipe in names():
        text = (files("diffem.runs") / "recipes" / f"{recipe}.yaml").read_text("utf-8")
    elif _is_file(recipe) and Path(recipe).suffix in set(TABLES) - {".txt"}:  # a text file may be a recipe
        raise InputError(f"{recipe} is data, not a recipe. {about_table(Path(recipe))}")
    elif _is_file(recipe) and Path(recipe).suffix in DATA:
        raise InputError(
            f"{recipe} is data, not a recipe. Pass the name of a recipe, and the data as a setting: diffem fit "
            f"small-images --set data='{{source: file, path: {recipe}, sigma: 0.1}}' (sigma: the noise level, for .npy "
            "files)"
        )
    elif _is_file(recipe):
        text = read_text(recipe, YAML_BYTES)
    else:
        raise InputError(
            f"unknown recipe {reprlib.repr(recipe)}: there is no file of that name, and the built-in recipes are "
            f"{', '.join(names())}"
        )
    above, mark, stated = text.rpartition(CHECKSUM)
    # a copy of a run's recipe may be edited; in the run folder a changed file is damaged
    if mark and stated.strip() != digest(above.encode()) and (Path(recipe).parent / "run.json").exists():
        raise InputError(
            f"{recipe} is damaged: its contents do not match the checksum in its last line (to change a recipe, copy "
            "it out of the run folder)"
        )
    values = parse_yaml(text, recipe)
    if not isinstance(values, dict):
        raise InputError(f"{recipe}: a recipe is a mapping of keys to values, got {type(values).__name__}")
    return translate(values) if mark else values  # only runs write checksums


def is_written_by_run(path: Path) -> bool:
    """Whether a recipe file was written by a run: it contains a run's name, or lies in a run folder."""
    return _is_file(str(path)) and (name_of_run(path) is not None or (path.absolute().parent / "run.json").exists())


def has_checksum(path: Path) -> bool:
    """Whether a recipe file has a checksum. Without it, a file that was cut off between two lines looks complete."""
    return CHECKSUM in read_text(path, YAML_BYTES)


def name_of_run(path: Path) -> str | None:
    """Return the name of the run that wrote a recipe file; None if the file contains none."""
    lines = [line.removeprefix(RUN) for line in read_text(path, YAML_BYTES).splitlines() if line.startswith(RUN)]
    return lines[-1] if lines else None


def _is_file(recipe: str) -> bool:
    try:
        return Path(recipe).is_file()
    except OSError:  # the text is no valid file name
        return False


def parse_change(text: str) -> tuple[str, Any]:
    """Parse the argument of `--set`: `train.lr=1e-4` → ("train.lr", 0.0001)."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InputError(f"--set needs key=value, got {text!r}")
    try:
        parsed = parse_yaml(value, f"--set {key}")
    except InputError as error:
        raise InputError(f"--set {key}: {reprlib.repr(value)} is not a valid value ({error})") from None
    # YAML 1.1 reads 1e-4 as a string
    return key, float(parsed) if isinstance(parsed, str) and _is_number(parsed) else parsed


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
