"""What commands share: their arguments and options, and the device they use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder")]
SeedOption = Annotated[int, typer.Option("--seed", help="address of the random numbers")]
LapOption = Annotated[int | None, typer.Option("--lap", help="use this lap instead of the last")]
StepsOption = Annotated[int, typer.Option("--steps", help="sampling steps")]
SamplerOption = Annotated[str, typer.Option("--sampler", help="ddpm2, ddpm, ddim, ddim2, heun or pc")]
BatchOption = Annotated[
    int | None,
    typer.Option("--batch", min=1, help="how many are drawn at a time; as many as suit the device when absent"),
]


def device() -> torch.device:
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
