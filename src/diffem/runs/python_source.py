"""Observations made by a Python function of the user: `data: {source: my_module:problem}`.

The function returns `Observations` or a `Problem`. Its keyword arguments are the other keys of `data`, and `seed` if it
has such a parameter.

The function is executed only if the user names it: in a recipe file, a mapping, `--set`, `changes` or `--source`.
Loading a run folder or an exported prior never executes code, because the recipe in it, and a module next to it, may be
untrusted. `recipe_folder` makes this decision.
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
from .recipe import Recipe, is_written_by_run

NAME = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*)", re.ASCII)


def python_problem(source: str, seed: int, options: dict[str, Any], folder: Path) -> Problem:
    """Import the module and call the function.

    Args:
        source: `module:function`.
        seed: Passed to the function if it has a parameter `seed`.
        options: The other arguments of the function.
        folder: Searched for the module before `sys.path`.

    Raises:
        InputError: If the function cannot be imported, fails, or returns something other than observations.
    """
    match = NAME.fullmatch(source)
    if match is None:
        raise InputError(f"data.source {source!r} must have the form module:function, such as my_module:problem")
    module_name, name = match.groups()
    with _first_in_path(folder):
        module = _module(module_name, folder)
        function = getattr(module, name, None)
        if not callable(function):
            raise InputError(f"data.source: {module.__file__} has no function {name!r}")
        problem = _call(function, source, seed, options)
    if isinstance(problem, Observations):
        return Problem(problem)
    if not isinstance(problem, Problem):
        raise InputError(
            f"data.source {source!r} must return diffem.Observations or a diffem.observations.Problem, "
            f"got {type(problem).__name__}"
        )
    return problem


def _module(name: str, folder: Path) -> Any:
    top = name.split(".")[0]
    found = PathFinder.find_spec(top, [str(folder)])
    loaded = getattr(sys.modules.get(top), "__file__", None)
    if found is not None and loaded and found.origin and not os.path.samefile(loaded, found.origin):
        raise InputError(
            f"data.source: another module {top!r} is already loaded from {loaded}; rename the one in {folder}"
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            hint = f"; name the module without .py: {name.removesuffix('.py')}:function" if name.endswith(".py") else ""
            raise InputError(
                f"data.source: module {name!r} was found neither in {folder} nor in sys.path{hint}"
            ) from None
        raise InputError(f"data.source: {name} imports the module {error.name}, which was not found") from error


def _call(function: Any, source: str, seed: int, options: dict[str, Any]) -> Any:
    try:
        signature = inspect.signature(function)
        arguments = dict(options)
        if "seed" in signature.parameters:
            arguments["seed"] = seed
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"data.source {source!r} does not accept these arguments: {str(options)[:400]} ({error})"
        ) from None
    try:
        return function(**arguments)
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
    """The folder to search for the module of a data source that a recipe names.

    Args:
        recipe: The recipe as the user passed it to `fit`: the path of a file, or a mapping.
        changes: The recipe keys that the user set.

    Raises:
        InputError: If the source comes from the recipe of a run, so that it must not be executed.
    """
    if "data" in changes or "data.source" in changes:
        return Path.cwd()
    if isinstance(recipe, str | os.PathLike) and not is_written_by_run(Path(recipe)):
        return Path(recipe).absolute().parent
    if not isinstance(recipe, Recipe) and not isinstance(recipe, str | os.PathLike):
        return Path.cwd()
    raise InputError(
        f"the observations come from the Python function {source}, which only the recipe of a run names. It is not "
        "executed, because the run may be untrusted, unless you name it yourself: "
        f"--set data.source={source}, or changes={{'data.source': {source!r}}}"
    )
