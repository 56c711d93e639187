"""Data sources: functions that make observations from settings and a seed.

`SOURCES` names the function of each source, `module:function`, which is imported when it is used. A new source is a
file and a line in `SOURCES`. Sources that simulate measurements also return the true x. It is used for evaluation only,
never for training.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from ..core.errors import InputError
from ..core.options import options_of
from ..observations import Problem
from ..observations.observations_file import read_observations

Source = Callable[..., Problem]  # (seed, **settings)


def file(seed: int, path: str = "", sigma: float | list[float] | str | None = None) -> Problem:
    """Observations saved with `Observations.save`, or a `.npy` array with the noise level sigma."""
    if not path:
        raise InputError("data.path, the file of the observations, is missing")
    if not Path(path).is_file():
        what = "is a folder or no regular file" if Path(path).exists() else "does not exist"
        raise InputError(f"data.path: observations file {path!r} {what}")
    level = float(sigma) if isinstance(sigma, str) and sigma != "learn" else sigma  # YAML 1.1 reads 1e-2 as a string
    return Problem(read_observations(Path(path), level))


SOURCES: dict[str, str | Source] = {
    "digits": "diffem.datasets.digits:digits",
    "manifold": "diffem.datasets.manifold:manifold",
    "cifar10": "diffem.datasets.cifar10:cifar10",
    "fastmri": "diffem.mri.fastmri:fastmri",
    "mri_images": "diffem.mri.images:mri_images",
    "file": file,
}


def source_function(name: str) -> Source:
    """Import the function of a data source in `SOURCES`."""
    source = SOURCES[name]
    if not isinstance(source, str):
        return source
    module, _, function = source.partition(":")
    imported: Source = getattr(import_module(module), function)
    return imported


def expected_size(source: str, options: dict[str, Any]) -> tuple[tuple[int, ...], int | None] | None:
    """Size of the data of a source, without reading them.

    The module of a source NAME may define a function `expected_size_of_NAME(options)`.

    Args:
        source: A name in `SOURCES`, or any other source.
        options: The other keys of the recipe's section `data`.

    Returns:
        The shape of a sample, and the number of observations or None; None if the size is not known.
    """
    if source not in SOURCES:
        return None
    module = import_module(source_function(source).__module__)
    size: Callable[[dict[str, Any]], tuple[tuple[int, ...], int | None]] | None = getattr(
        module, f"expected_size_of_{source}", None
    )
    return None if size is None else size(options)


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
            "data.source is 'given', which means that the observations are passed from Python: diffem.fit(obs, ...). "
            "On the command line, pass a NumPy array and its noise level, --set data='{source: file, path: images.npy, "
            "sigma: 0.1}'; a file of Observations.save, --set data='{source: file, path: obs.safetensors}'; or a "
            "function, --set data.source=my_module:problem"
        )
    if ":" in source:
        raise InputError(
            f"the observations come from the Python function {source}. It is not executed unless you name it yourself "
            f"(fit: --set data.source={source}; evaluate, report, export: --source {source}) or call it from Python, "
            "because the file that names it may be untrusted"
        )
    if source not in SOURCES:
        raise InputError(f"unknown data source {source!r}; known: {', '.join(SOURCES)}")
    try:
        return source_function(source)(seed, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, OverflowError, MemoryError) as error:
        # settings may be untrusted: a negative size, for example, fails deep inside the source
        raise InputError(
            f"data source {source!r} does not accept these settings: {str(options)[:400]} ({error}); "
            f"{options_of(source_function(source), given=1)}"
        ) from error
