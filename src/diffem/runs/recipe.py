"""Recipes by name and from files: the built-in ones, YAML files and mappings, with readable errors. `schema.py` has the keys."""

from __future__ import annotations

import reprlib
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ..core.errors import InputError
from ..files.plain_yaml import YAML_BYTES, parse_yaml
from ..files.reading import digest, read_text
from .schema import CHECKSUM, RUN, Data, Epochs, EStep, Gaussian, Network, Noise, Open, Recipe, Train, Watch
from .stages import Final, set_key

__all__ = [
    "Data",
    "EStep",
    "Epochs",
    "Gaussian",
    "Network",
    "Noise",
    "Open",
    "Recipe",
    "Train",
    "Watch",
    "has_checksum",
    "is_of_run",
    "load_recipe",
    "named_run",
    "names",
    "parse_change",
]


def names() -> list[str]:
    """The built-in recipes."""
    folder = files("diffem.runs") / "recipes"
    return sorted(entry.name.removesuffix(".yaml") for entry in folder.iterdir() if entry.name.endswith(".yaml"))


def load_recipe(recipe: str | Path | dict[str, Any] | Recipe, changes: dict[str, Any] | None = None) -> Recipe:
    """A built-in recipe by name, a YAML file, or a mapping; `changes` sets keys like `train.lr`."""
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
        raise InputError(f"{where}: " + "; ".join(_explain(item) for item in error.errors())) from None


def _read(recipe: str) -> dict[str, Any]:
    if recipe in names():
        text = (files("diffem.runs") / "recipes" / f"{recipe}.yaml").read_text()
    elif _is_file(recipe):
        text = read_text(recipe, YAML_BYTES)
    else:
        raise InputError(
            f"unknown recipe {reprlib.repr(recipe)}: no file of that name, and the built-in ones are {', '.join(names())}"
        )
    above, mark, stated = text.rpartition(CHECKSUM)
    # a copy of a run's recipe may be edited; in the run's own folder a change is damage
    if mark and stated.strip() != digest(above.encode()) and (Path(recipe).parent / "run.json").exists():
        raise InputError(
            f"{recipe} is damaged: its lines do not match the checksum in the last (to change a recipe, copy it out of the run's folder)"
        )
    values = parse_yaml(text, recipe)
    if not isinstance(values, dict):
        raise InputError(f"{recipe}: a recipe is a mapping of keys to values, got {type(values).__name__}")
    return values


def is_of_run(path: Path) -> bool:
    """Whether a recipe's file was written by a run: it names one, or lies in a run's folder."""
    return _is_file(str(path)) and (named_run(path) is not None or (path.absolute().parent / "run.json").exists())


def has_checksum(path: Path) -> bool:
    """Whether a recipe's file ends with the line `to_file` adds; without it, a file cut off between two lines looks whole."""
    return CHECKSUM in read_text(path, YAML_BYTES)


def named_run(path: Path) -> str | None:
    """The name of the run that a recipe's file was written for by `to_file`; None if it names none."""
    lines = [line.removeprefix(RUN) for line in read_text(path, YAML_BYTES).splitlines() if line.startswith(RUN)]
    return lines[-1] if lines else None


def _is_file(recipe: str) -> bool:
    try:
        return Path(recipe).is_file()
    except OSError:  # a name no file can have
        return False


def parse_change(text: str) -> tuple[str, Any]:
    """`train.lr=1e-4` → ("train.lr", 0.0001)."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise InputError(f"--set needs key=value, got {text!r}")
    try:
        parsed = parse_yaml(value, f"--set {key}")
    except InputError as error:
        raise InputError(f"--set {key}: {reprlib.repr(value)} is not a valid value ({error})") from None
    # YAML 1.1 reads 1e-4 as a word; people mean the number
    return key, float(parsed) if isinstance(parsed, str) and _is_number(parsed) else parsed


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 120


def _explain(item: Any) -> str:
    item = {**item, "loc": tuple(part for part in item["loc"] if part not in ("number", "mapping"))}  # tags of Steps
    where = ".".join(str(part) for part in item["loc"]) or "recipe"
    if item["type"] == "extra_forbidden":
        section: Any = Recipe
        for part in item["loc"][:-1]:
            section = section.model_fields[part].annotation if part in getattr(section, "model_fields", {}) else None
            section = {"steps": Epochs, "first_steps": Epochs, "final": Final}.get(part, section)  # of several types
        known = ", ".join(section.model_fields) if section is not None else ""
        return f"unknown key {where!r}" + (f"; known here: {known}" if known else "")
    if item["type"] == "missing":
        return f"{where!r} is missing"
    if item["type"] == "value_error":  # a rule of our own, whose message names what was given
        return (f"{where}: " if item["loc"] else "") + item["msg"].removeprefix("Value error, ")
    return f"{where}: {item['msg'].lower()}, got {_SHORT.repr(item['input'])}"
