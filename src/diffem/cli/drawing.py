"""The commands `sample` and `posterior`: samples of a prior, and posterior draws for the observations in a file."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..core.counting import count_of
from ..core.errors import InputError
from ..files import memory
from ..posterior import METHODS
from .options import (
    BatchOption,
    LapOption,
    MethodOption,
    PosteriorSamplerOption,
    PriorArgument,
    SamplerOption,
    SeedOption,
    StepsOption,
    device,
    require_file,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..observations import Observations
    from ..runs.recipe import EStep, Recipe

ITERATIONS = 3  # smallest default of --iterations; E-steps may use fewer to save time


def sample(
    run: PriorArgument,
    n: Annotated[int, typer.Option("-n", min=1, help="number of samples")] = 64,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="the file to write: .npy (array) or .png (picture). Default: RUN/samples.png"),
    ] = None,
    steps: StepsOption = 128,
    sampler: SamplerOption = "ddpm2",
    seed: SeedOption = 0,
    batch: BatchOption = None,
    lap: LapOption = None,
) -> None:
    """Draw new samples from the learned prior."""
    from ..em.exports import is_export
    from ..em.run import load

    if out is None and (run.is_file() or is_export(run)):
        what = "a file" if run.is_file() else "an exported prior"
        raise InputError(f"--out is required: {run} is {what}, not a run folder to write into")
    target = require_file("--out", out or run / "samples.png", ".npy", ".png")
    prior = load(run, lap, device(), "recipe")
    memory.require(2 * n * prior.mean.numel() * prior.mean.element_size(), f"-n {n}")
    x = prior.sample(n, steps=steps, sampler=sampler, seed=seed, batch_size=batch).cpu().numpy()
    _write(target, x)
    typer.echo(target)


def posterior(
    run: PriorArgument,
    observations: Annotated[
        Path,
        typer.Argument(
            metavar="OBS", help="a file written by Observations.save, a .npy array, or your function MODULE:FUNCTION"
        ),
    ],
    out: Annotated[
        Path,
        typer.Option("--out", "-o", help="the file to write: .npz (draws, mean, std, chi2), .nii.gz or .png (picture)"),
    ],
    draws: Annotated[int, typer.Option("--draws", min=1, help="draws per observation; std needs at least 2")] = 16,
    steps: StepsOption = 128,
    sampler: PosteriorSamplerOption = None,
    method: MethodOption = None,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--iterations",
            min=1,
            help="iterations of the linear solver, for mmps and similar methods. Default: those of the run, at least 3",
        ),
    ] = None,
    seed: SeedOption = 0,
    batch: BatchOption = None,
    lap: LapOption = None,
    sigma: Annotated[
        float | None,
        typer.Option("--sigma", min=0, help="noise level of a .npy array; NaN are values that were not measured"),
    ] = None,
    n: Annotated[int | None, typer.Option("-n", min=1, help="draw for the first n observations only")] = None,
) -> None:
    """Draw reconstructions of observations: posterior draws, mean, standard deviation."""
    from ..em.expectation import default_sampler_options, posterior_from_recipe
    from ..em.run import load
    from ..em.screening import largest_plausible
    from ..files.writing import write_bytes
    from ..report import pictures
    from ..report.export import require_volume, write_posterior

    require_file("--out", out, ".npz", ".nii", ".nii.gz", ".png")
    prior = load(run, lap, device(), "recipe")
    if out.name.endswith((".nii", ".nii.gz")):
        require_volume(out, prior.event_shape)
    obs = _observations(observations, sigma, run)[:n].to(prior.mean.device, prior.mean.dtype)
    if obs.x_shape != prior.event_shape:
        raise InputError(
            f"{observations} must contain observations of x with shape {prior.event_shape}, as {run}, got {obs.x_shape}"
        )
    memory.require(2 * draws * len(obs) * prior.mean.numel() * prior.mean.element_size(), f"--draws {draws}")
    e_step = _drawing(run)
    name = method or e_step.method
    if iterations is not None and name not in (solving := methods_with_iterations()):
        raise InputError(
            f"--iterations needs a method with a linear solver ({', '.join(solving)}), the method is {name}"
        )
    exact = prior.is_exact and method is None and iterations is None
    if iterations is not None and name != "mmps":
        conditioned = prior.posterior(obs, method=name, iterations=iterations)
    else:
        changes = {"method": name, "iterations": iterations or max(e_step.iterations, ITERATIONS)}
        conditioned = posterior_from_recipe(prior, obs, e_step.model_copy(update=changes), exact=exact)
    drawing = {"sampler": sampler} if sampler is not None else {} if exact else default_sampler_options(e_step)
    typer.echo(f"drawing {count_of(draws, 'time')} for each of {count_of(len(obs), 'observation')} ...", err=True)
    x = conditioned.sample(draws, steps=steps, seed=seed, batch_size=batch, **drawing).cpu()
    obs = obs.to("cpu")
    chi2 = _screened(x, obs, e_step, largest_plausible(prior, e_step.bound))
    if out.suffix == ".png":
        write_bytes(out, pictures.posterior(obs.backprojected().numpy(), x.numpy()))
    else:
        intensities = _has_intensities(run)
        write_posterior(out, x, chi2, intensities)
        if out.suffix != ".npz":
            typer.echo("the values are intensities from 0 to 1" if intensities else "the values are in the units of x")
    typer.echo(out)


def _screened(x: Tensor, obs: Observations, e_step: EStep, bound: float) -> Tensor:
    """Print how well draws `(draws, n, *event)` fit, and return χ² per measured value, `(draws, n)`.

    χ² is NaN for observations without measured values.
    """
    import torch

    from ..em.screening import acceptable

    rejected = sum(int((~acceptable(d, obs, e_step.chi2, bound)).sum()) for d in x)
    chi2 = torch.stack([obs.chi2(d) for d in x])
    empty = int(obs.empty().sum())
    residual = f"residual χ² per measured value {float(chi2.nanmedian()):.2f} (median)" if empty < len(obs) else ""
    typer.echo(
        f"{count_of(len(obs), 'observation')}, {count_of(len(x), 'draw')} each" + (f"; {residual}" if residual else "")
    )
    if empty:
        typer.echo(f"no value was measured in {empty} of them: draws for these are samples of the prior")
    if rejected:
        typer.echo(
            f"warning: the screening of the E-step rejects {rejected} of {count_of(len(x) * len(obs), 'draw')} (not "
            f"finite, χ² above {e_step.chi2:g}, or |x| above {bound:g}): try more --steps, more --iterations, or "
            "--sampler tds",
            err=True,
        )
    return chi2


def _observations(named: Path, sigma: float | None, run: Path) -> Observations:
    """Observations from a file; or from a function `module:function` of the user, who names it and so runs it.

    The function receives the settings in the recipe of the run if the recipe names it too.
    """
    from ..observations.observations_file import read_observations
    from ..runs.changes import with_usable_paths
    from ..runs.python_source import NAME, python_problem
    from ..runs.rundir import RunDir

    if named.exists() or not NAME.fullmatch(str(named)):
        return read_observations(named, sigma)
    if sigma is not None:
        raise InputError(f"--sigma is for .npy files only: {named} returns observations with their noise level")
    seed, options = 0, {}
    if (run / "run.json").exists():
        recipe = with_usable_paths(RunDir(run).recipe(), run)
        if recipe.data.source == str(named):
            seed, options = recipe.seed, recipe.data.options("source")
    return python_problem(str(named), seed, options, Path.cwd()).obs


def methods_with_iterations() -> list[str]:
    """Names of the posterior methods that solve a linear system iteratively, from the registry."""
    return [name for name, method in METHODS.items() if "iterations" in inspect.signature(method).parameters]


def _drawing(run: Path) -> EStep:
    """Options of the E-step of the run, or of the run that an export came from; otherwise the defaults."""
    from ..runs.recipe import EStep

    recipe = _recipe(run)
    return EStep.model_validate({}) if recipe is None else recipe.drawing


def _has_intensities(run: Path) -> bool:
    """Whether x has the scale of the MRI data sources; own data have their own units."""
    recipe = _recipe(run)
    return recipe is not None and recipe.data.source in ("fastmri", "mri_images")


def _recipe(run: Path) -> Recipe | None:
    """The recipe of the run, or of the run that an export came from, if it is known."""
    from ..em import exports as hub
    from ..runs.rundir import RunDir

    if hub.is_export(run):
        return hub.recipe_of_card(hub.read_card(run))
    return RunDir(run).recipe() if run.is_dir() else None


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    for command in (sample, posterior):
        app.command()(command)


def _write(target: Path, x: Any) -> None:
    from ..files.writing import write_array, write_bytes
    from ..report import pictures

    if target.suffix == ".npy":
        write_array(target, x)
    else:
        write_bytes(target, pictures.grid(x, columns=min(16, max(1, int(len(x) ** 0.5)))))
