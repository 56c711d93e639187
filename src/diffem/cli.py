"""The command line: recipes, fit, evaluate, report, export, app and doctor here, the others in `cli_drawing.py`, `cli_mri.py` and `cli_tables.py`."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from .cli_drawing import register as register_drawing
from .cli_mri import register as register_mri
from .cli_options import (
    LapOption,
    RunArgument,
    SamplerOption,
    SourceOption,
    StepsOption,
    device,
    printed_warnings,
    require_folder,
)
from .cli_tables import register as register_tables

PATIENCE = 8.0  # seconds a run has to stop by itself when asked to; see `interruption.py`

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn a diffusion prior from incomplete, noisy observations alone; then sample it or any posterior.",
)


def _version(show: bool) -> None:
    if show:
        from . import __version__

        typer.echo(f"diffem {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="print the version")
    ] = False,
) -> None:
    pass


@app.command()
def recipes(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="print this one, with a comment for every key; also a YAML file"),
    ] = None,
) -> None:
    """List the built-in recipes, or print one to be edited: diffem recipes table > mine.yaml."""
    from .runs.recipe import load_recipe, names

    if recipe is not None:
        from .runs.commented import commented

        typer.echo(commented(load_recipe(recipe)), nl=False)
        return
    for name in names():
        typer.echo(f"{name:16} {load_recipe(name).about}")


@app.command()
def fit(
    recipe: Annotated[str, typer.Argument(help="a built-in recipe or a YAML file")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="the run's folder; runs/RECIPE when absent")] = None,
    change: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change a key: train.lr=1e-4")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="overrides the recipe's")] = None,
    logger: Annotated[
        list[str] | None,
        typer.Option("--logger", metavar="NAME", help="write laps to tensorboard or wandb, too; may be repeated"),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="exit with code 3 if the last lap was flagged as worse than before")
    ] = False,
) -> None:
    """Run a recipe, or resume it if the folder holds an unfinished run of the same recipe.

    Several processes, started by `accelerate launch -m diffem fit …` or torchrun, share the work. SIGTERM, SIGUSR1 and Ctrl-C save
    and end within seconds, with exit code 75 (130 after Ctrl-C); the same command resumes.
    """
    from . import fit as learn
    from .interruption import EXIT_CTRL_C, Interruption, Preempted
    from .processes import ALONE, join
    from .runs.recipe import parse_change

    processes = ALONE
    try:
        with Interruption().listening(PATIENCE) as interruption, printed_warnings(sys.stdout):
            processes = join()
            changes = dict(parse_change(text) for text in change or [])
            run = learn(
                None,
                recipe,
                out,
                seed,
                changes=changes,
                loggers=logger or (),
                processes=processes,
                interruption=interruption,
            )
    except Preempted as stopped:
        if interruption.signal == signal.SIGINT:
            stopped.exit_code = EXIT_CTRL_C
        raise
    finally:
        processes.leave()
    if strict and run.laps[-1]["warnings"]:
        raise typer.Exit(3)


register_drawing(app)


@app.command()
def evaluate(
    run: RunArgument,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            help="clean data: 'source' for the truth of a simulated source, a .npy, a .npz with an array 'images', a CIFAR-10 folder",
        ),
    ] = None,
    draws: Annotated[int, typer.Option("--draws", min=0, help="posterior draws per observation; 0 for none")] = 16,
    observations: Annotated[
        int, typer.Option("--observations", min=1, help="posterior draws are made for so many")
    ] = 2048,
    samples: Annotated[int, typer.Option("--samples", min=2, help="prior samples")] = 1024,
    steps: StepsOption = 128,
    sampler: SamplerOption = "ddpm2",
    batch: Annotated[int | None, typer.Option("--batch", min=1, help="prior samples drawn at a time")] = None,
    extractor: Annotated[
        str | None,
        typer.Option(
            "--extractor",
            help="adds FID and KID: a TorchScript feature extractor, whose code is executed; DIFFEM_INCEPTION when absent",
        ),
    ] = None,
    pixel_range: Annotated[
        tuple[float, float] | None,
        typer.Option("--range", metavar="LOW HIGH", help="the values that are pixel 0 and pixel 255"),
    ] = None,
    lap: LapOption = None,
    source: SourceOption = None,
) -> None:
    """Measure a run: without clean data, and against clean data where it is given."""
    from .em.evaluation import evaluate as measure

    results = measure(
        run,
        reference,
        draws=draws,
        observations=observations,
        samples=samples,
        steps=steps,
        sampler=sampler,
        batch=batch,
        extractor=extractor,
        range=pixel_range,
        lap=lap,
        source=source,
        device=device(),
    )
    typer.echo(json.dumps(results, indent=1))


@app.command()
def report(run: RunArgument, source: SourceOption = None) -> None:
    """Write the HTML page of a run again."""
    from .report.page import write_report
    from .runs.rundir import RunDir

    problem = RunDir(run).problem(source)
    obs, reference, range = (problem.obs, problem.reference, problem.range) if problem else (None, None, None)
    typer.echo(write_report(run, obs, reference, device(), range))


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="the folder to write")],
    lap: LapOption = None,
    notes: Annotated[str, typer.Option("--notes", help="free text for the card")] = "",
    source: SourceOption = None,
) -> None:
    """Write a prior to give away: weights, and a card that says what it learned from; the layout is the Hugging Face hub's."""
    from .interop import hub
    from .runs.rundir import RunDir

    require_folder("--out", out)
    problem = RunDir(run).problem(source)
    obs, pixel_range = (problem.obs, problem.range) if problem is not None else (None, None)
    typer.echo(hub.export_run(run, out, lap=lap, obs=obs, range=pixel_range, notes=notes))


@app.command("app")
def look(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run's folder, or an exported prior's")],
    observations: Annotated[
        Path | None,
        typer.Option(
            "--observations",
            help="the run's observations, where they were given from Python: a file of Observations.save",
        ),
    ] = None,
    host: Annotated[str, typer.Option("--host", help="who may connect: this machine alone when absent")] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="the first free one from 7860 when absent; 0 for one that the system chooses",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="another host name that the page may be opened under, for proxies and DNS aliases"),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="open it in a browser")] = False,
) -> None:
    """Look at a run, finished or in progress, or at an exported prior, on a local page; needs the extra 'app'."""
    from .app.server import serve

    serve(run, observations, host, port, browser, name or [])


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="the same for programs")] = False) -> None:
    """Say what this machine offers, what is missing, and which recipes fit it."""
    from .doctor import describe, diagnose

    diagnosis = diagnose()
    typer.echo(json.dumps(diagnosis.to_json(), indent=1) if as_json else describe(diagnosis))


register_mri(app)
register_tables(app)


def main() -> None:
    """The entry point: bad input ends with one clear message and exit code 2, storage that fails with exit code 74."""
    from .errors import InputError, StorageError
    from .interruption import EXIT_LOST, Lost, Preempted
    from .memory import is_out_of_memory

    try:
        with printed_warnings(sys.stderr):
            app()
    except InputError as error:
        _complain(error)
        sys.exit(2)
    except Preempted as where:
        print(f"diffem: stopped as asked ({where}); the same command resumes", file=sys.stderr)
        sys.exit(where.exit_code)
    except Lost as error:
        print(f"diffem: {error}; this one stops too. Nothing is lost: the same command resumes.", file=sys.stderr)
        sys.exit(EXIT_LOST)
    except StorageError as error:
        _complain(f"{error}; once it can be, the same command goes on")
        sys.exit(74)  # EX_IOERR
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        _complain(f"out of memory: {next(iter(str(error).splitlines()), 'there is no more')}; ask for less at a time")
        sys.exit(1)


def _complain(message: object) -> None:
    # names may be a stranger's: what is not a letter could command the terminal
    text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(message))
    print(f"diffem: {text}", file=sys.stderr)


if __name__ == "__main__":
    main()
