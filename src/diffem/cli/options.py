"""What commands share: their arguments and options, and the device they use."""

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

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder")]
PriorArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="a run's folder, an exported prior's, or a prior's file")
]
SourceOption = Annotated[
    str | None,
    typer.Option(
        "--source",
        metavar="MODULE:FUNCTION",
        help="where the run's recipe names a function that makes its observations: execute it, looked for here and in sys.path",
    ),
]
SeedOption = Annotated[int, typer.Option("--seed", help="address of the random numbers")]


def _lap(text: str) -> int | str:
    return text if text == "best" else int(text)


# a number or "best"; typer has no unions, and takes the type from the parser
LapOption = Annotated[
    Any,
    typer.Option(
        "--lap", parser=_lap, metavar="K|best", help="use this lap instead of the last; best: by held-out prediction"
    ),
]
StepsOption = Annotated[int, typer.Option("--steps", min=1, max=1_000_000, help="sampling steps")]
# Weighted particles are for posteriors: without an observation all weights are equal.
PRIOR_SAMPLERS = [name for name in SAMPLERS if not get_sampler(name).needs_likelihood]
SamplerOption = Annotated[str, typer.Option("--sampler", help=", ".join(PRIOR_SAMPLERS))]
PosteriorSamplerOption = Annotated[
    str | None,
    typer.Option(
        "--sampler",
        help=f"{', '.join(SAMPLERS)} (tds: weighted particles); when absent ddpm2, or tds where the run drew with it",
    ),
]
MethodOption = Annotated[
    str | None, typer.Option("--method", help=f"{', '.join(METHODS)}; when absent the method of the run")
]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch", min=1, help="how many are drawn at a time; as many as suit the device when absent"),
]


def device() -> torch.device:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def require_file(option: str, path: Path, *suffixes: str) -> Path:
    """The file that a command is to write, or an error before it begins to compute.

    Args:
        option: The option that names the file.
        path: The file; it need not exist, nor its folder.
        suffixes: What its name may end in; anything when none is given.
    """
    if suffixes and not path.name.endswith(suffixes):
        known = " or ".join([", ".join(suffixes[:-1]), suffixes[-1]] if len(suffixes) > 1 else suffixes)
        raise InputError(f"{option} must end in {known}, got {path}")
    if path.is_dir():
        raise InputError(f"{option}: {path} is a folder, not a file")
    _require_writable(option, path)
    return path


def require_folder(option: str, path: Path) -> Path:
    """The folder that a command is to write into, or an error before it begins to compute."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{option}: {path} is a file, not a folder")
    _require_writable(option, path / "file")
    return path


def _require_writable(option: str, path: Path) -> None:
    """Missing folders are made; the one that is there already must be a folder, and writable."""
    there = next(folder for folder in path.absolute().parents if os.path.exists(folder))
    if not there.is_dir():
        raise InputError(f"{option}: {there} is a file, not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"{path} cannot be written: {there} is read-only")


@contextmanager
def printed_warnings(stream: TextIO) -> Iterator[None]:
    """Print the library's own warnings as lines for people, without the place in the code that gave them."""
    with warnings.catch_warnings():
        for category in (RunWarning, CastWarning):
            warnings.simplefilter("always", category)
        others = warnings.showwarning

        def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
            if not issubclass(category, RunWarning | CastWarning):
                others(message, category, *where, **more)
                return
            from rich.console import Console

            # names may be untrusted input: what is not printable could command the terminal
            text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(message))
            Console(file=stream, highlight=False).print(
                f"warning: {text}", style="yellow", soft_wrap=True, markup=False
            )

        warnings.showwarning = show
        yield
