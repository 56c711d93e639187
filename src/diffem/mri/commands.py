"""The commands `prepare`, `observe` and `mri`: decode images, write observations to a file, reconstruct slices."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..cli.options import BatchOption, LapOption, device, require_file, require_folder
from ..core.counting import count_of
from ..core.errors import InputError

ChangeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="change a setting of the data source, such as data.accel=8; may be repeated"
    ),
]


def prepare(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="a folder or tar archive of JPEG or PNG images")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the .npz file to write")],
    size: Annotated[
        int | None, typer.Option("--size", min=1, max=8192, help="shrink and pad the images to size×size")
    ] = None,
) -> None:
    """Convert a folder of images into one file for the MRI recipes."""
    from .images import prepare

    require_file("--out", out, ".npz")
    typer.echo(f"{prepare(str(path), out, size)}: {out}")


def observe(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE|RUN", help="a recipe, or a run folder")],
    out: Annotated[Path, typer.Option("--out", "-o", help="the .safetensors file to write")],
    n: Annotated[
        int | None, typer.Option("-n", min=1, help="save at most n observations, spread evenly over the data")
    ] = None,
    change: ChangeOption = None,
    truth: Annotated[
        Path | None, typer.Option("--truth", help="also write the true x, if known, to a .npy file")
    ] = None,
) -> None:
    """Save the observations of a recipe or run as a file for diffem posterior."""
    from ..files.writing import write_array
    from ..observations import Problem
    from ..runs.rundir import RunDir
    from .reconstruction import spread

    require_file("--out", out, ".safetensors")
    if truth is not None:
        require_file("--truth", truth, ".npy")
    resolved = _recipe(recipe, _data_changes(change, "data", "seed"))
    problem: Problem = resolved.problem()
    if Path(recipe).is_dir() and not change:
        RunDir(recipe).require_observations(problem.obs, f"those of the data source {resolved.data.source!r}")
    if truth is not None and problem.reference is None:
        raise InputError("--truth: this data source does not provide the true x")
    problem = problem if n is None else spread(problem, n)
    problem.obs.save(out)
    if truth is not None and problem.reference is not None:
        write_array(truth, problem.reference.numpy())
    typer.echo(f"{count_of(len(problem.obs), 'observation')} of {problem.obs.x_shape}: {out}")
    if problem.about:
        typer.echo(problem.about)


def mri(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="the folder to write. Default: RUN/mri")] = None,
    accel: Annotated[str, typer.Option("--accel", help="accelerations R, separated by commas")] = "4,6,8,16,32",
    slices: Annotated[int, typer.Option("--slices", min=1, help="number of held-out slices")] = 8,
    draws: Annotated[int, typer.Option("--draws", help="posterior draws per slice")] = 16,
    figures: Annotated[int, typer.Option("--figures", min=0, help="number of slices with a figure")] = 4,
    crop: Annotated[
        int | None,
        typer.Option(
            "--crop",
            min=0,
            help="also reconstruct from the central window of this size alone; 0: do not. Default: half the image",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, max=1_000_000, help="sampling steps. Default: those of the recipe, at least 28"),
    ] = None,
    batch: BatchOption = None,
    nifti: Annotated[bool, typer.Option("--nifti", help="also write NIfTI volumes")] = False,
    change: ChangeOption = None,
    lap: LapOption = None,
) -> None:
    """Reconstruct MRI slices at several accelerations: figures, arrays, metrics."""
    from ..runs.rundir import RunDir
    from .study import write_study

    try:
        accels = [float(word) for word in accel.split(",")]
    except ValueError:
        raise InputError(f"--accel must be numbers separated by commas, got {accel!r}") from None
    changes = {key.removeprefix("data."): value for key, value in _data_changes(change).items()}
    if "accel" in changes:
        raise InputError("--set data.accel has no effect here: use --accel")
    folder = require_folder("--out", out or RunDir(run).inside(run / "mri"))
    if RunDir(run).recipe().data.source == "fastmri" and "path" not in changes:
        typer.echo(
            "warning: the run was trained on these slices; name held-out ones with --set data.path=FOLDER", err=True
        )
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
        print_line=typer.echo,
    )
    typer.echo(folder)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (prepare, observe, mri):
        app.command()(command)


def _data_changes(change: list[str] | None, *others: str) -> dict[str, Any]:
    """Parse `--set`; raises `InputError` for keys that are neither settings of the data source nor in `others`."""
    from ..runs.recipe import parse_change

    changes = dict(parse_change(text) for text in change or [])
    for key in changes:
        if key not in others and not key.startswith("data."):
            raise InputError(f"--set accepts only settings of the data source here, such as data.path=..., got {key}")
    return changes


def _recipe(recipe: str, changes: dict[str, Any]) -> Any:
    from ..runs.changes import with_usable_paths
    from ..runs.recipe import load_recipe
    from ..runs.rundir import RunDir

    if Path(recipe).is_dir():
        run = RunDir(recipe)
        return load_recipe(with_usable_paths(run.recipe(), run.path), changes)
    return load_recipe(recipe, changes)
