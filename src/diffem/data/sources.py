"""Data sources: functions that make observations from settings and a seed. A new source needs a line in `SOURCES`.

Sources that simulate measurements also return the true x. It is used for evaluation only, never for training.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import InputError
from .observations import Observations


@dataclass
class Problem:
    """Observations, and the true x if they are known.

    Attributes:
        obs: The observations.
        reference: `(n, *event)`. The true x of each observation, if known.
        range: For images, the values of x that are pixel 0 and pixel 255.
        about: One line that describes the data and the quantities that were estimated from them.
    """

    obs: Observations
    reference: Tensor | None = None
    range: tuple[float, float] | None = None
    about: str = ""


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
        raise InputError(f"data.path: observations file {path!r} does not exist")
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
    """Make the observations of one of the library's data sources; `python_source.py` calls functions of the user.

    Args:
        source: A name in `SOURCES`.
        seed: Seed of all random numbers.
        options: The other keys of the recipe's section `data`.

    Raises:
        InputError: If the source is unknown, or does not accept the options.
    """
    if source == "given":
        raise InputError(
            "data.source is 'given', which means that the observations come from Python: diffem.fit(obs, ...). On the "
            "command line, name a file of Observations.save, --set data='{source: file, path: obs.safetensors}', or a "
            "function, --set data.source=my_module:problem"
        )
    if ":" in source:
        raise InputError(
            f"the observations are made by Python code, {source}, which is not executed only because a file names it. "
            f"Name it yourself (fit: --set data.source={source}; evaluate, report, export: --source {source}), or call "
            "the function from Python"
        )
    if source not in SOURCES:
        raise InputError(f"unknown data source {source!r}; known: {', '.join(SOURCES)}")
    try:
        return SOURCES[source](seed, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        # settings may be untrusted: a negative size, for example, fails deep inside the source
        raise InputError(
            f"data source {source!r} does not accept these settings: {str(options)[:400]} ({error})"
        ) from error
