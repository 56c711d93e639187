"""Observations that changed since a run was made are refused by every command that uses them; a data file may move."""

import shutil

import pytest
import torch
from typer.testing import CliRunner

import diffem
from diffem import InputError, Observations, operators
from diffem.app.viewer import Viewer
from diffem.cli.commands import app
from diffem.em.evaluation import evaluate
from diffem.observations.fingerprint import data_fingerprint
from diffem.report.page import write_report
from diffem.runs.recipe import load_recipe
from diffem.runs.rundir import RunDir

from .small import RECIPE, observations

SHORT = {
    **RECIPE,
    "laps": 1,
    "train": {**RECIPE["train"], "steps": 4},
    "watch": {"held_out": 8, "draws": 2, "samples": 8},
}


def recipe(path, laps=1):
    return {**SHORT, "laps": laps, "data": {"source": "file", "path": str(path)}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    home = tmp_path_factory.mktemp("data")
    observations().save(home / "obs.safetensors")
    diffem.fit(None, recipe(home / "obs.safetensors"), home / "run", progress=False)
    return home


@pytest.fixture
def changed(finished, tmp_path):
    """A run whose data file was replaced by another of the same shape."""
    home = tmp_path / "home"
    shutil.copytree(finished, home)
    observations(seed=1).save(home / "obs.safetensors")
    recipe = load_recipe(RunDir(home / "run").recipe(), {"data.path": str(home / "obs.safetensors")})
    (home / "run/recipe.yaml").write_text(recipe.to_file(RunDir(home / "run").info()["name"]))
    return home


def command(*arguments):
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    if result.exception is not None:
        raise result.exception


COMMANDS = {
    "evaluate": lambda home: evaluate(home / "run", samples=4, steps=2),
    "evaluate, command": lambda home: command("evaluate", home / "run", "--samples", 4, "--steps", 2),
    "report, command": lambda home: command("report", home / "run"),
    "report": lambda home: write_report(home / "run", observations(seed=1)),
    "export": lambda home: command("export", home / "run", "-o", home / "out"),
    "observe": lambda home: command("observe", home / "run", "-o", home / "y.safetensors"),
    "app": lambda home: Viewer(home / "run").problem,
    "app, file": lambda home: Viewer(home / "run", home / "obs.safetensors").problem,
}


def test_every_command_refuses_changed_observations(changed):
    for name, run in COMMANDS.items():
        with pytest.raises(InputError, match="run: the observations have changed"):
            run(changed)
        assert not (changed / "out").exists(), name


def test_the_same_observations_are_accepted(finished):
    evaluate(finished / "run", samples=4, steps=2)
    assert Viewer(finished / "run").problem is not None
    assert Viewer(finished / "run", finished / "obs.safetensors").problem is not None


def test_a_moved_data_file(finished, tmp_path):
    """If the same observations are at a new path, the run resumes and stores the path; others are refused."""
    out = tmp_path / "run"
    shutil.copytree(finished / "run", out)
    shutil.copy(finished / "obs.safetensors", tmp_path / "moved.safetensors")
    before = RunDir(out).info()["name"]
    run = diffem.fit(None, recipe(tmp_path / "moved.safetensors", laps=2), out, progress=False)
    assert len(run.laps) == 3
    assert RunDir(out).recipe().data.options("source") == {"path": str(tmp_path / "moved.safetensors")}
    assert RunDir(out).info()["name"] == before
    assert isinstance(diffem.load(out), diffem.priors.DiffusionPrior)
    observations(seed=1).save(tmp_path / "other.safetensors")
    with pytest.raises(InputError, match="other observations"):
        diffem.fit(None, recipe(tmp_path / "other.safetensors", laps=2), out, progress=False)
    assert RunDir(out).recipe().data.options("source") == {"path": str(tmp_path / "moved.safetensors")}


def test_another_description_is_no_other_recipe(finished, tmp_path):
    """A run resumes after `about` was reworded, also with more laps, and stores the new description."""
    out = tmp_path / "run"
    shutil.copytree(finished / "run", out)
    before = RunDir(out).info()["name"]
    for about, laps in (("reworded", 1), ("reworded again", 2)):
        reworded = recipe(finished / "obs.safetensors", laps=laps) | {"about": about}
        run = diffem.fit(None, reworded, out, progress=False)
        assert len(run.laps) == laps + 1
        assert RunDir(out).recipe().about == about
        assert RunDir(out).info()["name"] == before


def test_other_settings_of_the_data_are_another_recipe(tmp_path):
    source = {"source": "manifold", "n": 32, "dimension": 4, "measured": 2, "sigma": 0.1}
    changes = {**SHORT, "data": source}
    diffem.fit(None, changes, tmp_path / "run", progress=False)
    with pytest.raises(InputError, match=r"differs in data.sigma"):
        diffem.fit(None, {**changes, "data": {**source, "sigma": 0.2}}, tmp_path / "run", progress=False)


def test_the_fingerprint_sees_settings_of_operators():
    """y and the tensors of A are the same, but a setting of A differs."""
    y = torch.randn(4, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    mean, strided = (Observations(y, operators.Downsample(2, mode), sigma=0.1) for mode in ("mean", "bicubic"))
    assert {n: t.shape for n, t in mean.tensors().items()} == {n: t.shape for n, t in strided.tensors().items()}
    assert data_fingerprint(mean) != data_fingerprint(strided)


def test_the_fingerprint_survives_saving(tmp_path):
    obs = observations()
    obs.save(tmp_path / "obs.safetensors")
    assert data_fingerprint(Observations.load(tmp_path / "obs.safetensors")) == data_fingerprint(obs)
