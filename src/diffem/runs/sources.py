"""Where observations come from: a source makes them from its settings and a seed.

`SOURCES` names the function of each source, `module:function`, and imports it when it is used: a new source is a file and a line here. Sources
that simulate measurements of known data also return that data, for evaluation only: nothing in a run ever looks at it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..observations import Observations, Problem

Source = Callable[..., Problem]  # (seed, **settings)


def file(seed: int, path: str = "") -> Problem:
    """Observations saved with `Observations.save`."""
    if not Path(path).is_file():
        raise InputError(f"data.path: no observations file at {path!r}")
    return Problem(Observations.load(path))


SOURCES: dict[str, str | Source] = {
    "digits": "diffem.datasets.digits:digits",
    "manifold": "diffem.datasets.manifold:manifold",
    "cifar10": "diffem.datasets.cifar10:cifar10",
    "fastmri": "diffem.mri.fastmri:fastmri",
    "mri_images": "diffem.mri.images:mri_images",
    "file": file,
}


def source_function(name: str) -> Source:
    """The function of a source in `SOURCES`."""
    source = SOURCES[name]
    if not isinstance(source, str):
        return source
    module, _, function = source.partition(":")
    made: Source = getattr(import_module(module), function)
    return made


def make_problem(source: str, seed: int, options: dict[str, Any]) -> Problem:
    """The problem of one of this library's own sources; `python_source.py` has those of users, which execute code."""
    if source == "given":
        raise InputError(
            "data.source is 'given': the observations come from Python, diffem.fit(obs, ...). From the command line name a file of "
            "Observations.save, --set data='{source: file, path: obs.safetensors}', or a function, --set data.source=my_module:problem"
        )
    if ":" in source:
        raise InputError(
            f"the observations are made by Python code, {source}, which is not executed because a file names it. Name it yourself "
            f"(fit: --set data.source={source}; evaluate, report, export: --source {source}), or call the function from Python"
        )
    if source not in SOURCES:
        raise InputError(f"unknown data source {source!r}; known: {', '.join(SOURCES)}")
    try:
        return source_function(source)(seed, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        # settings may be a stranger's: a negative size fails deep inside, and is still a setting that is not taken
        raise InputError(
            f"data source {source!r} does not take these settings: {str(options)[:400]} ({error})"
        ) from error
