"""The command line: recipes, fit, evaluate, report, export, app and doctor; the other modules add their commands."""

from __future__ import annotations

import json
import signal
import sys
import warnings
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from ..core.errors import RunWarning
from ..files.writing import portable_json
from .drawing import register as register_drawing
from .impute import register as register_impute
from .options import (
    LapOption,
    RunArgument,
    SamplerOption,
    SourceOption,
    StepsOption,
    device,
    printed_warnings,
    require_folder,
)
from .streams import usable_streams

ELSEWHERE = ("diffem.mri.commands",)  # other modules with commands, which their `register(app)` adds
PATIENCE = 8.0  # seconds after a signal within which a run must stop; see `core/interruption.py`

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Learn a diffusion prior from incomplete, noisy observations alone; then sample it or any posterior.",
)


def _version(show: bool) -> None:
    if show:
        from ..core.version import __version__

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
        typer.Argument(metavar="[NAME]", help="print this recipe, a name or a YAML file, with a comment for every key"),
    ] = None,
) -> None:
    """List the built-in recipes, or print one for editing: diffem recipes table > mine.yaml."""
    from ..runs.recipe import load_recipe, names

    if recipe is not None:
        from ..runs.commented import commented

        typer.echo(commented(load_recipe(recipe)), nl=False)
        return
    listed = sorted(map(load_recipe, names()), key=lambda known: known.data.source != "given")  # own data first
    width = max(len(known.name) for known in listed)
    for known in listed:
        typer.echo(f"{known.name:{width}}  {known.about}")


@app.command()
def fit(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="a built-in recipe (diffem recipes) or a YAML file")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="the run folder to write. Default: runs/RECIPE")
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="change a key of the recipe, such as train.lr=1e-4; may be repeated"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="seed of all random numbers. Default: the seed of the recipe")
    ] = None,
    logger: Annotated[
        list[str] | None,
        typer.Option("--logger", metavar="NAME", help="also log every lap to tensorboard or wandb; may be repeated"),
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="exit with code 3 if the last lap has warnings")] = False,
    minutes: Annotated[
        float | None,
        typer.Option(
            "--minutes",
            metavar="N",
            help="stop after N minutes with exit code 75; a lap that would end later does not begin. The same command "
            "resumes",
        ),
    ] = None,
) -> None:
    """Learn a prior, or resume the unfinished run in the folder.

    Your own data: --set data='{source: file, path: images.npy, sigma: 0.1}'

    Ctrl-C, SIGTERM and SIGUSR1 save the run; the same command resumes it.

    `torchrun -m diffem fit …` shares the work between processes.
    """
    from ..api import fit as learn
    from ..core.interruption import EXIT_CTRL_C, Interruption, Preempted
    from ..core.processes import ALONE, join
    from ..runs.recipe import parse_change

    processes = ALONE
    try:
        with Interruption().listening(PATIENCE) as interruption, printed_warnings(sys.stdout):
            # the table ends with this sentence
            warnings.filterwarnings("ignore", r"lap \d+ is the best", RunWarning)
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
                minutes=minutes,
            )
    except Preempted as stopped:
        stopped.reason = interruption.reason
        if interruption.signal == signal.SIGINT:
            stopped.exit_code = EXIT_CTRL_C
        raise
    finally:
        processes.leave()
    if strict and run.laps[-1]["warnings"]:
        raise typer.Exit(3)


register_drawing(app)
register_impute(app)


@app.command()
def evaluate(
    run: RunArgument,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            help="clean data: 'source' for the true x of a simulated source, a .npy file, a .npz file with an array "
            "'images', or a CIFAR-10 folder",
        ),
    ] = None,
    draws: Annotated[
        int, typer.Option("--draws", min=0, help="posterior draws per observation, for errors and coverage; 0 for none")
    ] = 16,
    observations: Annotated[
        int, typer.Option("--observations", min=1, help="draw for at most this many observations")
    ] = 2048,
    samples: Annotated[int, typer.Option("--samples", min=2, help="number of prior samples")] = 1024,
    steps: StepsOption = 128,
    sampler: SamplerOption = "ddpm2",
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="samples per batch. Default: chosen for the device")
    ] = None,
    extractor: Annotated[
        str | None,
        typer.Option(
            "--extractor",
            help="TorchScript feature extractor for FID and KID; its code is executed. Default: DIFFEM_INCEPTION",
        ),
    ] = None,
    pixel_range: Annotated[
        tuple[float, float] | None,
        typer.Option(
            "--range", metavar="LOW HIGH", help="the values of x that correspond to pixels 0 and 255, for FID and KID"
        ),
    ] = None,
    lap: LapOption = None,
    source: SourceOption = None,
) -> None:
    """Measure how good a run is, without clean data or against a reference."""
    from ..em.evaluation import evaluate as measure

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
    typer.echo(portable_json(results, indent=1))


@app.command()
def report(run: RunArgument, source: SourceOption = None) -> None:
    """Write the HTML report of a run again."""
    from ..report.page import write_report
    from ..runs.rundir import RunDir

    problem = RunDir(run).problem(source)
    obs, reference, range = (problem.obs, problem.reference, problem.range) if problem else (None, None, None)
    typer.echo(write_report(run, obs, reference, device(), range))


@app.command()
def export(
    run: RunArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="the folder to write")],
    lap: LapOption = None,
    notes: Annotated[str, typer.Option("--notes", help="free text for the model card")] = "",
    source: SourceOption = None,
    dtype: Annotated[
        str | None,
        typer.Option("--dtype", help="round the weights to bfloat16 or float16. Default: not rounded"),
    ] = None,
    piece: Annotated[
        str | None,
        typer.Option("--piece", metavar="SIZE", help="split weights into files of at most this size, such as 15M"),
    ] = None,
    unfinished: Annotated[
        bool,
        typer.Option("--unfinished", help="export the interrupted training of a final prior, to continue it elsewhere"),
    ] = False,
) -> None:
    """Export a prior as a folder: weights and a model card.

    The folder has the layout of the Hugging Face hub.

    Another run can start from it: `diffem fit … --set start=DIR`.

    After --unfinished: `diffem fit … --set final.start=DIR`.
    """
    from ..core.errors import InputError
    from ..em import exports as hub
    from ..em.unfinished import export_unfinished
    from ..files.pieces import parse_size
    from ..runs.rundir import RunDir

    require_folder("--out", out)
    if dtype is not None and dtype not in hub.DTYPES:
        raise InputError(f"--dtype must be one of {', '.join(hub.DTYPES)}, got {dtype!r}")
    size = None if piece is None else parse_size(piece)
    problem = RunDir(run).problem(source)
    obs, pixel_range = (problem.obs, problem.range) if problem is not None else (None, None)
    about: dict[str, Any] = {"obs": obs, "range": pixel_range, "notes": notes, "dtype": dtype, "piece": size}
    if unfinished and lap is not None:
        raise InputError("--unfinished exports the lap in progress: leave out --lap")
    typer.echo(export_unfinished(run, out, **about) if unfinished else hub.export_run(run, out, lap=lap, **about))


@app.command("app")
def look(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="a run folder, or the folder of an exported prior")],
    observations: Annotated[
        Path | None,
        typer.Option(
            "--observations",
            help="the observations of a run that got them from Python: a file written by Observations.save",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", help="address to listen on. The default accepts connections from this machine only")
    ] = "127.0.0.1",
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=0,
            max=65535,
            help="port; 0 lets the system choose. Default: the first free port from 7860",
        ),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", help="additional host name of the page, for proxies and DNS aliases; may be repeated"),
    ] = None,
    browser: Annotated[bool, typer.Option("--browser", help="open the page in a browser")] = False,
) -> None:
    """Show a run or an exported prior on a local web page; needs the extra 'app'."""
    from ..app.server import serve

    serve(run, observations, host, port, browser, name or [])


@app.command()
def doctor(as_json: Annotated[bool, typer.Option("--json", help="print the list as JSON")] = False) -> None:
    """List the resources of this machine and the recipes that run on it."""
    from .doctor import describe, diagnose

    diagnosis = diagnose()
    typer.echo(json.dumps(asdict(diagnosis), indent=1) if as_json else describe(diagnosis))


for module in ELSEWHERE:
    import_module(module).register(app)


def main() -> None:
    """Entry point. Errors that users can resolve give one message: exit code 2 for bad input, 74 for failed writes."""
    from ..core.errors import InputError, StorageError
    from ..core.interruption import EXIT_LOST, Preempted, ProcessLost
    from ..files.memory import is_out_of_memory

    try:
        with usable_streams(), printed_warnings(sys.stderr):
            app()
    except InputError as error:
        _exit(2, error)
    except Preempted as where:
        _exit(where.exit_code, f"stopped {where.reason} ({where}); the same command resumes")
    except ProcessLost as error:
        _exit(EXIT_LOST, f"{error}; this process stops too. No work is lost: the same command resumes.")
    except StorageError as error:
        _exit(74, f"{error}; the same command resumes when it can be written")  # EX_IOERR
    except FloatingPointError as error:  # a training that diverges
        _exit(1, error)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not is_out_of_memory(error):
            raise
        _exit(1, f"out of memory: {next(iter(str(error).splitlines()), 'no details')}; use a smaller batch")


def _exit(code: int, message: object) -> NoReturn:
    # names may be untrusted, and control characters could change the state of the terminal
    text = "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in str(message))
    print(f"diffem: {text}", file=sys.stderr)
    sys.exit(code)
