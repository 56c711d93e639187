"""Observations made by a function that a recipe names: executed because the user named it, never because a run's folder
does."""

import importlib
import shutil
import sys

import numpy as np
import pytest
import torch
import yaml

import diffem
from diffem import InputError, Observations, operators
from diffem.em import exports as hub
from diffem.runs.rundir import RunDir
from diffem.runs.sources import make_problem

from ..command import diffem as command
from ..em.small import RECIPE

MODULE = """
import pathlib
import torch
from diffem import Observations, operators

with open(pathlib.Path(__file__).parent / "executed", "a") as marks:
    marks.write("x")


def sums(x, gain, weights):
    return gain * (weights * x).cumsum(-1)


def problem(n=80, seed=0):
    generator = torch.Generator().manual_seed(seed)
    weights = 0.5 + torch.rand(n, 4, generator=generator)
    A = operators.Function(sums, (4,), gain=2.0, weights=weights)
    x = torch.randn(n, 4, generator=generator)
    return Observations(A(x) + 0.1 * torch.randn(n, 4, generator=generator), A, sigma=0.1)


def nothing():
    return None


number = 3


def failing():
    raise FileNotFoundError("psf.fits")


def nonlinear():
    return Observations(torch.rand(80, 4), operators.Function(lambda x: x**2, (4,)), sigma=0.1)
"""
NAME = "some_module_of_a_user"
FEW = {**RECIPE, "laps": 1, "train": {**RECIPE["train"], "steps": 20}, "data": {"source": f"{NAME}:problem", "n": 90}}


@pytest.fixture(autouse=True)
def _forget():
    yield
    sys.modules.pop(NAME, None)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / f"{NAME}.py").write_text(MODULE)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(FEW))
    return tmp_path


def executions(folder):
    file = folder / "executed"
    return len(file.read_text()) if file.exists() else 0


def test_the_command_line_learns_through_an_operator_of_the_users(folder):
    """The module lies beside the recipe, which is not where the command runs."""
    result = command("fit", folder / "recipe.yaml", "-o", folder / "run")
    assert result.returncode == 0, result.stderr
    assert "74 observations for training and 16 held out" in result.stdout
    assert RunDir(folder / "run").recipe().data.source == f"{NAME}:problem"
    again = command("fit", folder / "recipe.yaml", "-o", folder / "run")
    assert "all laps are done" in again.stdout


@pytest.fixture
def run(folder):
    diffem.fit(None, folder / "recipe.yaml", folder / "run", progress=False)
    sys.modules.pop(NAME)
    (folder / "executed").unlink()
    return folder / "run"


def test_a_runs_folder_executes_nothing(run, folder, monkeypatch, tmp_path):
    """All commands that read a run or fit its recipe, run in the folder that contains the module."""
    monkeypatch.chdir(folder)
    diffem.load(run)
    assert RunDir(run).problem() is None
    for words in (
        ("sample", run, "-n", 2, "--steps", 2),
        ("evaluate", run, "--samples", 8, "--steps", 2),
        ("report", run),
        ("export", run, "-o", folder / "prior"),
    ):
        result = command(*words)
        assert result.returncode == 0, result.stderr
    hub.load(folder / "prior")
    shutil.copy(f"{NAME}.py", run)
    shutil.copy(run / "recipe.yaml", folder / "copy.yaml")
    for recipe in (run / "recipe.yaml", folder / "copy.yaml"):
        result = command("fit", recipe, "-o", folder / "other")
        assert result.returncode == 2
        assert f"unless you name it yourself: --set data.source={NAME}:problem" in result.stderr
    result = command("observe", run, "-o", "obs.safetensors")
    assert result.returncode == 2
    assert f"--source {NAME}:problem" in result.stderr
    for refused in (lambda: diffem.fit(None, RunDir(run).recipe(), folder / "other"), RunDir(run).recipe().problem):
        with pytest.raises(InputError, match="come from the Python function"):
            refused()
    assert executions(folder) == executions(run) == 0
    assert not (folder / "other").exists()


def test_a_function_that_the_user_names_is_executed(run, folder, monkeypatch):
    monkeypatch.chdir(folder)
    source = f"{NAME}:problem"
    shutil.copy(run / "recipe.yaml", folder / "copy.yaml")
    assert command("fit", "copy.yaml", "-o", "other", "--set", f"data.source={source}").returncode == 0
    assert executions(folder) == 1
    assert command("report", run, "--source", source).returncode == 0
    assert command("export", run, "-o", "prior", "--source", source).returncode == 0
    assert hub.read_card("prior")["training"]["operators"]["config"]["numbers"] == {"gain": 2.0}
    assert '"observation_distance"' in command("evaluate", run, "--samples", 8, "--steps", 2, "--source", source).stdout
    drawn = command("posterior", run, source, "-n", 3, "--draws", 2, "--steps", 4, "-o", "draws.npz")
    assert drawn.returncode == 0, drawn.stderr
    obs = importlib.import_module(NAME).problem(n=90)[:3]  # n is a setting of the run
    expected = diffem.load(run).posterior(obs, iterations=3).sample(draws=2, steps=4)
    torch.testing.assert_close(torch.from_numpy(np.load("draws.npz")["draws"]), expected, atol=1e-5, rtol=0)
    result = command("evaluate", run, "--source", f"{NAME}:nothing")
    assert "its observations come from" in result.stderr
    (folder / f"{NAME}.py").write_text(MODULE.replace("0.1 * torch", "0.2 * torch"))
    sys.modules.pop(NAME)
    assert "the observations have changed" in command("evaluate", run, "--source", source).stderr
    assert "return the same observations every time?" in command("fit", "recipe.yaml", "-o", "run").stderr


def test_a_mapping_is_the_users_own(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert diffem.fit(None, FEW, "run", progress=False).laps[0]["observations"] == 74


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"source": "some_module_of_a_user:absent"}, "has no function 'absent'"),
        ({"source": "some_module_of_a_user:number"}, "has no function 'number'"),
        ({"source": "some_module_of_a_user:nothing"}, "must return diffem.Observations.*got NoneType"),
        ({"source": "some_module_of_a_user:problem", "m": 3}, "does not accept these arguments.*'m'"),
        ({"source": "some_module_of_a_user.py:problem"}, "without .py: some_module_of_a_user:function"),
        ({"source": "some_module_of_a_user:failing"}, r"failed: FileNotFoundError: psf.fits .*user.py, line \d+"),
        ({"source": "no_module_of_a_user:problem"}, "module 'no_module_of_a_user' was found neither in"),
        ({"source": "some_module_of_a_user:problem()"}, "must have the form module:function"),
        ({"source": "../some_module_of_a_user:problem"}, "must have the form module:function"),
    ],
)
def test_what_is_wrong_with_a_source_is_named(data, words, folder):
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**FEW, "data": data}))
    result = command("fit", folder / "recipe.yaml", "-o", folder / "run")
    assert result.returncode == 2
    assert f"{folder / 'recipe.yaml'}: " in result.stderr
    with pytest.raises(InputError, match=words):
        diffem.fit(None, folder / "recipe.yaml", folder / "run")


def test_a_function_that_is_not_linear_is_refused(folder):
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**FEW, "data": {"source": f"{NAME}:nonlinear"}}))
    with pytest.raises(InputError, match="A is not linear"):
        diffem.fit(None, folder / "recipe.yaml", folder / "run")
    assert not (folder / "run").exists()


def test_a_module_of_the_same_name_is_not_taken_for_another(folder, tmp_path):
    diffem.fit(None, folder / "recipe.yaml", folder / "run", progress=False)
    other = tmp_path / "other"
    other.mkdir()
    shutil.copy(folder / f"{NAME}.py", other)
    shutil.copy(folder / "recipe.yaml", other)
    with pytest.raises(InputError, match="already loaded"):
        diffem.fit(None, other / "recipe.yaml", other / "run")


def test_observations_given_from_python_are_missed_by_name():
    with pytest.raises(InputError, match="the observations are passed from Python"):
        make_problem("given", 0, {})


# places on disk -------------------------------------------------------------------------------------------------------


def saved(path):
    torch.manual_seed(0)
    Observations(torch.randn(80, 4), operators.Mask(torch.rand(80, 4) < 0.8), sigma=0.1).save(path)


@pytest.mark.parametrize("inside", [False, True])
def test_a_run_finds_its_data_from_any_directory(inside, tmp_path, monkeypatch):
    """A relative path is kept as an absolute one; data inside the run's folder may move with it."""
    (tmp_path / "here/run").mkdir(parents=True)
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    recipe = {**FEW, "data": {"source": "file", "path": "obs.safetensors"}}
    saved("obs.safetensors")
    diffem.fit(None, recipe, "run", progress=False)
    assert RunDir("run").recipe().data.options("source") == {"path": str(tmp_path / "here/obs.safetensors")}
    folder = tmp_path / "here/run"
    if inside:
        shutil.move("obs.safetensors", "run/obs.safetensors")
        diffem.fit(None, recipe, "run", changes={"data.path": "run/obs.safetensors"}, progress=False)
        assert RunDir("run").recipe().data.options("source") == {"path": "obs.safetensors"}
        folder = tmp_path / "moved"
        shutil.move("run", folder)
    monkeypatch.chdir(tmp_path / "there")
    assert len(RunDir(folder).problem().obs) == 80
    assert command("evaluate", folder, "--samples", 8, "--steps", 2).returncode == 0
    assert command("observe", folder, "-o", "o.safetensors").returncode == 0


def test_a_copy_of_a_runs_recipe_is_a_recipe(tmp_path, monkeypatch):
    """An edited copy is a recipe too; a change inside the run folder counts as damage."""
    monkeypatch.chdir(tmp_path)
    saved("obs.safetensors")
    diffem.fit(None, {**FEW, "data": {"source": "file", "path": "obs.safetensors"}}, "run", progress=False)
    shutil.copy("run/recipe.yaml", "mine.yaml")
    assert command("fit", "mine.yaml", "-o", "same").returncode == 0
    text = (tmp_path / "mine.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("laps: 1", "laps: 2"))
    assert command("fit", "mine.yaml", "-o", "edited").returncode == 0
    assert RunDir("edited").laps_done() == 2
    (tmp_path / "run/recipe.yaml").write_text(text.replace("laps: 1", "laps: 2"))
    with pytest.raises(InputError, match="is damaged"):
        RunDir("run").recipe()
