"""Where observations come from: a source makes them from its settings and a seed; a new one is a function and a line in `SOURCES`.

Sources that simulate measurements of known data also return that data, for evaluation only: nothing in a run ever looks at it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..core.errors import InputError
from .observations import Observations


@dataclass
class Problem:
    """Observations, and where it is known the truth behind them, one x per observation.

    range: where x are images, the two values that are pixel 0 and pixel 255; how evaluation turns samples into pictures.
    """

    obs: Observations
    reference: Tensor | None = None
    range: tuple[float, float] | None = None
    about: str = ""  # what the data are, in a line, with what was estimated from them


def digits(seed: int, **options: Any) -> Problem:
    from .digits import digits

    return digits(seed, **options)


def manifold(seed: int, **options: Any) -> Problem:
    from .manifold import manifold

    return manifold(seed, **options)


def cifar10(seed: int, **options: Any) -> Problem:
    from .cifar10 import cifar10

    return cifar10(seed, **options)


def fastmri(seed: int, **options: Any) -> Problem:
    from .fastmri import fastmri

    return fastmri(seed, **options)


def mri_images(seed: int, **options: Any) -> Problem:
    from .mri_images import mri_images

    return mri_images(seed, **options)


def file(seed: int, path: str = "") -> Problem:
    """Observations saved with `Observations.save`."""
    if not Path(path).is_file():
        raise InputError(f"data.path: no observations file at {path!r}")
    return Problem(Observations.load(path))


SOURCES: dict[str, Callable[..., Problem]] = {
    "digits": digits,
    "manifold": manifold,
    "cifar10": cifar10,
    "fastmri": fastmri,
    "mri_images": mri_images,
    "file": file,
}


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
        return SOURCES[source](seed, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        # settings may be a stranger's: a negative size fails deep inside, and is still a setting that is not taken
        raise InputError(
            f"data source {source!r} does not take these settings: {str(options)[:400]} ({error})"
        ) from error
