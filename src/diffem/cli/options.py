"""Arguments, options and checks that several commands share."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ..core.errors import CastWarning, InputError, RunWarning, StorageError
from ..posterior import METHODS
from ..samplers import SAMPLERS, get_sampler

if TYPE_CHECKING:
    import torch

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")]
PriorArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run folder, the folder of an exported prior, or the file of a prior")
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="MODULE:FUNCTION",
        help="your function that returns the observations, if the run was fitted with one; it is executed",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="seed of the random numbers")]


def _lap(text: str) -> int | str:
    try:
        return text if text == "best" else int(text)
    except ValueError:
        raise typer.BadParameter(f"must be a number or 'best', got {text!r}") from None


# a number or "best"; typer does not support unions, so the type comes from the parser
LapOption = Annotated[
    Any,
    typer.Option(
        "--lap",
        parser=_lap,
        metavar="K|best",
        help="use the prior of lap K, or of the lap that predicts held-out values best. Default: the last lap",
    ),
]
StepsOption = Annotated[
    int, typer.Option("--steps", min=1, max=1_000_000, help="sampling steps; more are slower and more accurate")
]
# Samplers that weight particles by the likelihood of an observation do not apply to a prior.
PRIOR_SAMPLERS = [name for name in SAMPLERS if not get_sampler(name).needs_likelihood]
SamplerOption = Annotated[str, typer.Option("--sampler", help=f"one of {', '.join(PRIOR_SAMPLERS)}")]
PosteriorSamplerOption = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        help=f"one of {', '.join(SAMPLERS)}. Default: ddpm2, or tds if the run used it",
    ),
]
MethodOption = Annotated[
    str | None, typer.Option("--method", help=f"posterior method: {', '.join(METHODS)}. Default: that of the run")
]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch", min=1, help="samples per batch. Default: chosen for the device"),
]


def device() -> torch.device:
    """CUDA if it is available, otherwise the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def require_file(option: str, path: Path, *suffixes: str) -> Path:
    """Check that a file can be written, before the computation starts.

    Args:
        option: The option that names the file.
        path: The file. The file and its folder need not exist.
        suffixes: Allowed endings of the name. Default: any.

    Returns:
        The path.

    Raises:
        InputError: If the name has another ending or is that of a folder.
        StorageError: If the folder is read-only.
    """
    if suffixes and not path.name.endswith(suffixes):
        known = " or ".join([", ".join(suffixes[:-1]), suffixes[-1]] if len(suffixes) > 1 else suffixes)
        raise InputError(f"{option} must end in {known}, got {path}")
    if path.is_dir():
        raise InputError(f"{option}: {path} is a folder, not a file")
    _require_writable(option, path)
    return path


def require_folder(option: str, path: Path) -> Path:
    """Check that files can be written into a folder, before the computation starts; see `require_file`."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{option}: {path} is a file, not a folder")
    _require_writable(option, path / "file")
    return path


def _require_writable(option: str, path: Path) -> None:
    """Check that the closest existing parent is a writable folder; missing folders are created later."""
    there = next(folder for folder in path.absolute().parents if os.path.exists(folder))
    if not there.is_dir():
        raise InputError(f"{option}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"{path} cannot be written: {there} is read-only")


@contextmanager
def printed_warnings(stream: TextIO) -> Iterator[None]:
    """Print the library's warnings as single lines without the location in the code."""
    with warnings.catch_warnings():
        for category in (RunWarning, CastWarning):
            warnings.simplefilter("always", category)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, RunWarning | CastWarning):
                others(message, category, *where, **more)
                return
            from rich.console import Console

            # names may be untrusted, and control characters could change the state of the terminal
            text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(message))
            Console(file=stream, highlight=False).print(
                f"warning: {text}", style="yellow", soft_wrap=True, markup=False
            )

        warnings.showwarning = show
        yield
