"""Observations made by a function of the user's: `data: {source: my_module:problem}`.

The function returns `Observations` or a `Problem`. It gets the other keys of `data` by name, and `seed` if it takes one.

Naming such a source executes code, so it is executed only if the user names it: in a recipe's own file, a mapping, `--set`,
`changes` or `--source`. A run's folder and an exported prior never execute anything: the recipe that a run keeps may be
somebody else's, and so may a module beside it. `recipe_folder` decides.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.interruption import Preempted
from ..observations import Observations, Problem
from .recipe import Recipe, is_of_run

NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


def python_problem(source: str, seed: int, options: dict[str, Any], folder: Path) -> Problem:
    """Import the module, from `folder` or from where Python finds it, and call the function."""
    match = NAME.fullmatch(source)
    if match is None:
        raise InputError(f"data.source {source!r} is not of the form module:function, such as my_module:problem")
    module_name, name = match.groups()
    with _first_in_path(folder):
        module = _module(module_name, folder)
        function = getattr(module, name, None)
        if not callable(function):
            raise InputError(f"data.source: {module.__file__} has no function {name!r}")
        problem = _called(function, source, seed, options)
    if isinstance(problem, Observations):
        return Problem(problem)
    if not isinstance(problem, Problem):
        raise InputError(
            f"data.source {source!r} must return diffem.Observations or a diffem.observations.Problem, "
            f"got {type(problem).__name__}"
        )
    return problem


def _module(name: str, folder: Path) -> Any:
    top, found = name.split(".")[0], None
    with _first_in_path(folder):
        found = PathFinder.find_spec(top, [str(folder)])
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if found is not None and loaded and found.origin and not os.path.samefile(loaded, found.origin):
        raise InputError(f"data.source: a module {top!r} is loaded already, from {loaded}; rename the one in {folder}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"; name the module without .py: {name.removesuffix('.py')}:function" if name.endswith(".py") else ""
            raise InputError(
                f"data.source: there is no module {name!r}, neither in {folder} nor where Python looks (sys.path){hint}"
            ) from None
        raise InputError(f"data.source: {name} needs a module that is missing: {error.name}") from error


def _called(function: Any, source: str, seed: int, options: dict[str, Any]) -> Any:
    try:
        signature = inspect.signature(function)
        given = dict(options)
        if "seed" in signature.parameters:
            given["seed"] = seed
        signature.bind(**given)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"data.source {source!r} does not take these settings: {str(options)[:400]} ({error})"
        ) from None
    try:
        return function(**given)
    except (InputError, Preempted):
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise InputError(
            f"data.source {source!r} failed: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


@contextmanager
def _first_in_path(folder: Path) -> Iterator[None]:
    before = list(sys.path)
    sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path[:] = before


def recipe_folder(source: str, recipe: object, changes: dict[str, Any]) -> Path:
    """Where to look for the module of a source that a recipe names; an error where it must not be executed.

    Args:
        source: The source, `module:function`.
        recipe: The recipe as the user passed it to `fit`: a file's path, or a mapping.
        changes: The keys of the recipe that the user set.
    """
    if "data" in changes or "data.source" in changes:
        return Path.cwd()
    if isinstance(recipe, str | os.PathLike) and not is_of_run(Path(recipe)):
        return Path(recipe).absolute().parent
    if not isinstance(recipe, Recipe) and not isinstance(recipe, str | os.PathLike):
        return Path.cwd()
    raise InputError(
        f"the observations are made by Python code, {source}, which is executed only if you name it, not because a run's "
        f"recipe does: --set data.source={source}, or changes={{'data.source': {source!r}}}"
    )
