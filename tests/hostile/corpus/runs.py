"""Folders of runs."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from diffem.files.reading import read_json
from diffem.files.writing import write_json

from ..sound import write_run
from .registry import Bomb, hole, hostile


def outside(folder: Path) -> Path:
    """A folder beside the run, with a prior that does not belong to the run."""
    return write_run(folder / "outside")


@hostile("run", "a lap that is a link to elsewhere", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "laps" / "000").rename(folder / "moved")
    (run / "laps" / "000").symlink_to(other / "laps" / "000")
    return run


@hostile("run", "a prior that is a link to elsewhere", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "laps" / "000" / "prior.safetensors").unlink()
    (run / "laps" / "000" / "prior.safetensors").symlink_to(
        os.path.relpath(other, run / "laps" / "000") + "/laps/000/prior.safetensors"
    )
    return run


@hostile("run", "a recipe that is a link to elsewhere", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "recipe.yaml").unlink()
    (run / "recipe.yaml").symlink_to(other / "recipe.yaml")
    return run


@hostile("run", "laps that are a link to themselves", "no lap of this run is finished yet")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps").rename(folder / "moved")
    (run / "laps").symlink_to("laps")
    return run


@hostile("run", "a lap that leads back to the run", "no lap of this run is finished yet")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps" / "000").rename(folder / "moved")
    (run / "laps" / "000").symlink_to("..")
    return run


@hostile("run", "a recipe cut off between two lines", "recipe.yaml is damaged: its last line")
def _(folder):
    run = write_run(folder / "run")
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text[: text.index("watch:")])
    return run


@hostile("run", "a flipped bit in the recipe", "recipe.yaml is damaged: its contents do not match")
def _(folder):
    run = write_run(folder / "run")
    text = (run / "recipe.yaml").read_text()
    (run / "recipe.yaml").write_text(text.replace("held_out: 4", "held_out: 5"))
    return run


@hostile("run", "a flipped bit in run.json", "run.json is damaged")
def _(folder):
    run = write_run(folder / "run")
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text.replace('"seed": 0', '"seed": 1'))
    return run


@hostile("run", "a run.json of a gigabyte", "is too large|do not compress this well")
def _(folder):
    run = write_run(folder / "run")
    hole(run / "run.json", 1 << 30, b'{"version": ')
    return run


@hostile("run", "a run.json of brackets", "nested more than 64 deep")
def _(folder):
    run = write_run(folder / "run")
    (run / "run.json").write_text("[" * 100_000)
    return run


@hostile("run", "a run.json of two million empty lists", "holds more than 2097152 values")
def _(folder):
    run = write_run(folder / "run")
    (run / "run.json").write_text('{"checksum": "", "a": [' + "[]," * 2_700_000 + "[]]}")
    return run


@hostile("run", "a run.json that is a list", "does not describe a run")
def _(folder):
    run = write_run(folder / "run")
    (run / "run.json").write_text("[1, 2]")
    return run


@hostile("run, report", "measures that are words", "chi2 should be a number")
def _(folder):
    run = write_run(folder / "run")
    file = run / "laps/000/metrics.json"
    write_json(file, {**read_json(file), "chi2": "<script>"})
    return run


@hostile("run, report", "measures of another lap", "does not contain the metrics of lap 0")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps/000/metrics.json").write_text('{"lap": 7}')
    return run


@hostile("run, app", "pictures that are pickled", "objects are never read")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / "laps/000/samples.npy", np.array([Bomb(folder / "EXECUTED")], dtype=object), allow_pickle=True)
    return run


@hostile("run, app", "pictures of another form", "posterior.npy is damaged")
def _(folder):
    run = write_run(folder / "run")
    np.save(run / "laps/000/posterior.npy", np.float32(3))
    return run


@hostile("run, report", "losses that are not numbers", "must contain a list of losses")
def _(folder):
    run = write_run(folder / "run")
    (run / "laps/000/losses.json").write_text('{"losses": null}')
    return run


@hostile("run, fit", "a lock that is a link to elsewhere", r"\.lock cannot be created")
def _(folder):
    run = write_run(folder / "run")
    (run / ".lock").unlink()
    (run / ".lock").symlink_to(folder / "EXECUTED")
    return run


@hostile("run, fit", "a lap that leads out, to be written to", "leads out of")
def _(folder):
    run, other = write_run(folder / "run"), outside(folder)
    (run / "laps" / "001").rename(folder / "moved")
    (run / "laps" / "001").symlink_to(other / "laps" / "000")
    return run
