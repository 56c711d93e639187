"""Commands for slices and k-space: prepare images, write observations to a file, look at reconstructions."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .cli_options import LapOption, device
from .errors import InputError

ChangeOption = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a setting of the data: data.accel=8")
]


def prepare(
    path: Annotated[Path, typer.Argument(help="a folder or tar archive of JPEG or PNG images")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the .npz to write")],
    size: Annotated[int | None, typer.Option("--size", help="fit the images into size×size")] = None,
) -> None:
    """Decode images once, into an .npz for the source mri_images."""
    from .data.mri_images import prepare

    if out.suffix != ".npz":
        raise InputError(f"--out must end in .npz, got {out}")
    typer.echo(f"{prepare(str(path), out, size)}: {out}")


def observe(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE|RUN", help="a recipe, or a run's folder: whose data to observe")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="the observations file, for diffem posterior")],
    n: Annotated[int | None, typer.Option("-n", help="only so many, spread evenly")] = None,
    change: ChangeOption = None,
    truth: Annotated[
        Path | None, typer.Option("--truth", help="also write the truth behind them, where it is known: .npy")
    ] = None,
) -> None:
    """Write observations of a recipe's data source to a file."""
    from .data.sources import Problem
    from .em.reconstruction import spread
    from .runs.files import write_array
    from .runs.rundir import RunDir

    resolved = _recipe(recipe, change)
    problem: Problem = resolved.problem()
    if Path(recipe).is_dir() and not change:
        RunDir(recipe).require_observations(problem.obs, f"those of the data source {resolved.data.source!r}")
    problem = problem if n is None else spread(problem, n)
    problem.obs.save(out)
    if truth is not None:
        if problem.reference is None:
            raise InputError("--truth: the source does not know the truth behind its observations")
        write_array(truth, problem.reference.numpy())
    typer.echo(f"{len(problem.obs)} observations of {problem.obs.x_shape}: {out}")
    if problem.about:
        typer.echo(problem.about)


def mri(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="the folder to write; RUN/mri when absent")] = None,
    accel: Annotated[str, typer.Option("--accel", help="accelerations R, separated by commas")] = "4,6,8,16,32",
    slices: Annotated[int, typer.Option("--slices", help="how many held-out slices")] = 8,
    draws: Annotated[int, typer.Option("--draws", help="posterior draws per slice")] = 16,
    figures: Annotated[int, typer.Option("--figures", help="slices to make a figure of")] = 4,
    crop: Annotated[
        int | None,
        typer.Option("--crop", help="side of the window of the crop posterior; half the image when absent, 0 for none"),
    ] = None,
    steps: Annotated[
        int | None, typer.Option("--steps", help="sampling steps; when absent the recipe's, at least 28")
    ] = None,
    batch: Annotated[int | None, typer.Option("--batch", help="draws made at a time")] = None,
    nifti: Annotated[bool, typer.Option("--nifti", help="also export NIfTI volumes")] = False,
    change: ChangeOption = None,
    lap: LapOption = None,
) -> None:
    """Reconstruct held-out slices at several accelerations: figures, arrays and measures in one folder."""
    from .report.study import write_study
    from .runs.recipe import parse_change
    from .runs.rundir import RunDir

    try:
        accels = [float(word) for word in accel.split(",")]
    except ValueError:
        raise InputError(f"--accel must be numbers separated by commas, got {accel!r}") from None
    changes = {}
    for key, value in (parse_change(text) for text in change or []):
        if not key.startswith("data."):
            raise InputError(f"--set changes settings of the data here, data.path=..., got {key}")
        changes[key.removeprefix("data.")] = value
    folder = out or RunDir(run).inside(run / "mri")
    write_study(
        run,
        folder,
        accels=accels,
        slices=slices,
        draws=draws,
        figures=figures,
        crop=crop,
        changes=changes,
        steps=steps,
        batch=batch,
        lap=lap,
        nifti=nifti,
        device=device(),
        say=typer.echo,
    )
    typer.echo(folder)


def register(app: typer.Typer) -> None:
    for command in (prepare, observe, mri):
        app.command()(command)


def _recipe(recipe: str, change: list[str] | None) -> Any:
    from .runs.recipe import load_recipe, parse_change
    from .runs.rundir import RunDir

    changes = dict(parse_change(text) for text in change or [])
    if Path(recipe).is_dir():
        return load_recipe(RunDir(recipe).recipe(), changes)
    return load_recipe(recipe, changes)
