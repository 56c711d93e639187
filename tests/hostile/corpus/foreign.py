"""Runs that contain intact files of other laps, seeds or runs, or whose data changed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from diffem import Observations, operators
from diffem.files.reading import file_digest, read_json
from diffem.files.tensors import read_tensors
from diffem.files.writing import write_json, write_tensors
from diffem.runs.recipe import load_recipe
from diffem.runs.rundir import RunDir

from ..sound import RECIPE, numbers, observations, write_run
from .registry import TIB, Bomb, hole, hostile

OTHERS: dict[str, dict[str, Any]] = {
    "another seed": {"seed": 1},
    "another run": {"gaussian": {"rounds": 3}},
    "a run on other data": {"data": {**RECIPE["data"], "sigma": 0.2}},
}
SHARD = ("laps/001/draws/00000.npy", "laps/001/draws/00000.json")


def swapped(folder: Path, changes: dict[str, Any], *files: str) -> Path:
    """A run with files of another run."""
    run, other = write_run(folder / "run"), write_run(folder / "other", **changes)
    for file in files:
        shutil.copy(other / file, run / file)
    return run


def rewritten(folder: Path, change: Callable[[dict[str, Any]], Any], file: str) -> Path:
    """A run in which one description was changed and its checksum updated."""
    run = write_run(folder / "run")
    if file.endswith(".safetensors"):
        tensors, description = read_tensors(run / file)
        change(description)
        write_tensors(run / file, tensors, description)
    else:
        value = read_json(run / file)
        change(value)
        write_json(run / file, value)
    return run


for name, changes in OTHERS.items():
    for command in ("run", "run, evaluate", "run, export", "run, app"):

        @hostile(command, f"the prior of {name}", r"prior.safetensors does not belong here: it has (seed|run)")
        def _(folder, changes=changes):
            return swapped(folder, changes, "laps/000/prior.safetensors")

    for command in ("run, evaluate", "run, report", "run, app"):

        @hostile(command, f"the measures of {name}", r"metrics.json does not belong here: it has (seed|run)")
        def _(folder, changes=changes):
            return swapped(folder, changes, "laps/000/metrics.json")

    @hostile("draws", f"of {name}", r"00000.json does not belong here: it has (seed|run)")
    def _(folder, changes=changes):
        return swapped(folder, changes, *SHARD)

    @hostile("run", f"the description of {name}", "recipe.yaml and run.json belong to different runs")
    def _(folder, changes=changes):
        return swapped(folder, changes, "run.json")

    @hostile("run, report", f"the recipe of {name}", "recipe.yaml and run.json belong to different runs")
    def _(folder, changes=changes):
        return swapped(folder, changes, "recipe.yaml")

    @hostile("run, report", f"the losses of {name}", "losses.json does not belong here")
    def _(folder, changes=changes):
        return swapped(folder, changes, "laps/000/losses.json")


@hostile("draws", "the array of another run beside its own report", "do not match their checksum")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / SHARD[0], numbers(1, 14, 4, seed=9).numpy())
    return run


@hostile("draws", "of other observations", r"00000.json does not belong here: it has observations 14 to 28")
def _(folder):
    run = write_run(folder / "run")
    for file in SHARD:
        shutil.copy(run / file.replace("00000", "00001"), run / file)
    return run


@hostile("draws", "of another lap", r"00000.json does not belong here: it has lap 2")
def _(folder):
    return rewritten(folder, lambda report: report["origin"].update(lap=2), SHARD[1])


@hostile("draws", "that name no run", "contains no name of a run")
def _(folder):
    return rewritten(folder, lambda report: report.pop("origin"), SHARD[1])


@hostile("draws", "with an origin that is a list of lists", "contains no name of a run")
def _(folder):
    return rewritten(folder, lambda report: report.update(origin=[[]] * 1000), SHARD[1])


@hostile("draws", "counted with words", "must be numbers")
def _(folder):
    return rewritten(folder, lambda report: report.update(chi2="one"), SHARD[1])


@hostile("draws", "in a pipe", "is not a file but a pipe")
def _(folder):
    run = write_run(folder / "run")
    (run / SHARD[0]).unlink()
    os.mkfifo(run / SHARD[0])
    return run


@hostile("draws", "reported by a device", "leads out of|is not a file but a device")
def _(folder):
    run = write_run(folder / "run")
    (run / SHARD[1]).unlink()
    (run / SHARD[1]).symlink_to("/dev/zero")
    return run


@hostile("draws", "of a terabyte of holes", "real data do not compress this well")
def _(folder):
    run = write_run(folder / "run")
    hole(run / SHARD[0], TIB, (run / SHARD[0]).read_bytes())
    return run


@hostile("draws", "that are pickled", "objects are never read")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / SHARD[0], np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return run


@hostile("draws", "of fewer observations", "must contain draws of 14 observations")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / SHARD[0], numbers(1, 3, 4).numpy())
    report = read_json(run / SHARD[1])
    write_json(run / SHARD[1], {**report, "sha256": file_digest(run / SHARD[0])})
    return run


@hostile("run", "the prior of another lap", "prior.safetensors does not belong here: it has lap 3")
def _(folder):
    return rewritten(folder, lambda note: note["origin"].update(lap=3), "laps/000/prior.safetensors")


@hostile("run", "a prior that names no run", "contains no name of a run")
def _(folder):
    return rewritten(folder, lambda note: note.pop("origin"), "laps/000/prior.safetensors")


@hostile("run", "a checkpoint in place of the prior", "does not belong here: it has kind training")
def _(folder):
    return rewritten(folder, lambda note: note["origin"].update(kind="training"), "laps/000/prior.safetensors")


@hostile("run", "a run without a name", "it has no name")
def _(folder):
    return rewritten(folder, lambda info: info.pop("name"), "run.json")


@hostile("run", "a run whose name is a number", "it has no name")
def _(folder):
    return rewritten(folder, lambda info: info.update(name=7), "run.json")


@hostile("run", "a format of the future", "has format 99, this version reads up to")
def _(folder):
    return rewritten(folder, lambda info: info.update(format=99), "run.json")


@hostile("run", "a format that is a word", "has format 'new', this version reads up to")
def _(folder):
    return rewritten(folder, lambda info: info.update(format="new"), "run.json")


@hostile("run", "a seed that is not the recipe's", "has seed 0, run.json has seed 5")
def _(folder):
    return rewritten(folder, lambda info: info.update(seed=5), "run.json")


@hostile("run, report", "measures that name no run", "contains no name of a run")
def _(folder):
    return rewritten(folder, lambda metrics: metrics.pop("origin"), "laps/000/metrics.json")


@hostile("run, app", "checksums that are a list", "'files' must contain the checksum")
def _(folder):
    return rewritten(folder, lambda metrics: metrics.update(files=[1]), "laps/000/metrics.json")


@hostile("run, app", "a checksum that is a number", "'files' must contain the checksum")
def _(folder):
    return rewritten(folder, lambda metrics: metrics["files"].update({"samples.npy": 1}), "laps/000/metrics.json")


@hostile("run, app", "samples of another run", "samples.npy is damaged: its contents do not match their checksum")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / "laps/000/samples.npy", numbers(8, 4, seed=3).numpy())
    return run


@hostile("run, app", "draws that are gone", "posterior.npy cannot be read")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps/000/posterior.npy").unlink()
    return run


@hostile("run, app", "samples in a pipe", "is not a file but a pipe")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps/000/samples.npy").unlink()
    os.mkfifo(run / "laps/000/samples.npy")
    return run


@hostile("run, app", "losses of the wrong form", "must contain a list of losses")
def _(folder):
    run = write_run(folder / "run")
    shutil.copytree(run / "laps/000", run / "laps/001", dirs_exist_ok=True)
    (run / "laps/001/losses.json").write_text(json.dumps([[1, 2, 3]]))
    for file, change in (("metrics.json", {"lap": 1}), ("prior.safetensors", {})):
        path = run / "laps/001" / file
        if file == "metrics.json":
            value = read_json(path)
            write_json(path, {**value, **change, "origin": {**value["origin"], "lap": 1}})
        else:
            tensors, note = read_tensors(path)
            write_tensors(path, tensors, {**note, "origin": {**note["origin"], "lap": 1}})
    return run


def on_a_file(folder: Path, obs: Observations) -> Path:
    """A run on observations in a file that was replaced afterwards."""
    observations(32).save(folder / "obs.safetensors")
    run = write_run(folder / "run", data={"source": "file", "path": str(folder / "obs.safetensors")})
    obs.save(folder / "obs.safetensors")
    return run


CHANGED = {
    "other values": lambda: Observations(numbers(32, 4, seed=5), observations(32).A, sigma=0.1),
    "other masks": lambda: Observations(observations(32).y, operators.Mask(numbers(32, 4, seed=6) > -1), sigma=0.1),
    "other noise": lambda: Observations(observations(32).y, observations(32).A, sigma=0.2),
    "fewer of them": lambda: observations(32)[:31],
    "another operator": lambda: Observations(observations(32).y, operators.Identity(), sigma=0.1),
}
for name, make in CHANGED.items():
    for command in ("run, evaluate", "run, export", "run, report", "run, observe", "run, app"):

        @hostile(command, f"data that changed, {name}", "the observations have changed")
        def _(folder, make=make):
            return on_a_file(folder, make())


@hostile("run, evaluate", "data that are gone", "run: its data cannot be loaded again: .*observations file")
def _(folder):
    run = on_a_file(folder, observations(32))
    (folder / "obs.safetensors").unlink()
    return run


@hostile("run, fit", "data that changed", "contains a run of another recipe")
def _(folder):
    return write_run(folder / "run", **OTHERS["a run on other data"])


@hostile("run, fit", "a run.json on other data", "contains a run on other observations")
def _(folder):
    return rewritten(folder, lambda info: info.update(observations="0" * 32), "run.json")


@hostile("run, fit", "a start passed from Python, while lap 0 is not done", "pass the same prior again")
def _(folder):
    run = rewritten(folder, lambda info: info.update(start="0" * 32), "run.json")
    (run / "laps/000/metrics.json").unlink()
    return run


@hostile("run, fit", "the recipe of another run", "recipe.yaml and run.json belong to different runs")
def _(folder):
    run = write_run(folder / "run")
    (run / "recipe.yaml").write_text(load_recipe(RECIPE).to_file("0" * 32))
    return run


@hostile("run, fit", "a recipe that names no run", "recipe.yaml and run.json belong to different runs, None")
def _(folder):
    run = write_run(folder / "run")
    (run / "recipe.yaml").write_text(RunDir(run).recipe().to_file())
    return run
