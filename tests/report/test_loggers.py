"""TensorBoard and Weights & Biases, replaced by stand-ins that record their calls."""

import builtins
import importlib
import sys
import types
from typing import ClassVar

import numpy as np
import pytest

import diffem
from benchmarks.undrawn import undrawn
from diffem import InputError, RunWarning
from diffem.runs.lap_arrays import read_losses
from diffem.runs.rundir import RunDir

from ..command import diffem as command
from ..em.small import RECIPE, observations

STEPS = 40
SHORT = {"train.steps": STEPS}


class Writer:
    """Records the calls of TensorBoard's SummaryWriter."""

    made: ClassVar[list["Writer"]] = []

    def __init__(self, folder):
        self.folder, self.scalars, self.images, self.closed = folder, [], [], False
        Writer.made.append(self)

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def add_image(self, name, image, step, dataformats):
        assert dataformats == "HWC"
        self.images.append((name, image, step))

    def close(self):
        self.closed = True


class Board:
    """Records the calls of a run of Weights & Biases."""

    def __init__(self, **options):
        self.options, self.logged, self.axes, self.finished = options, [], {}, False

    def define_metric(self, name, step_metric=None):
        self.axes[name] = step_metric

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished = True


@pytest.fixture
def tensorboard(monkeypatch):
    module = types.ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = Writer
    monkeypatch.setattr(Writer, "made", [])
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    return Writer.made


@pytest.fixture
def wandb(monkeypatch):
    module, made = types.ModuleType("wandb"), []
    module.init = lambda **options: made.append(Board(**options)) or made[-1]
    module.Image = lambda array: ("image", array)
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return made


def fit(out, laps=2, **options):
    changes = SHORT | {"laps": laps}
    return diffem.fit(observations(), RECIPE, out, changes=changes, progress=False, report=False, **options)


@pytest.fixture
def pictures_undrawn():
    """For tests that check which laps are written; two other tests check the pictures."""
    with undrawn():
        yield


def test_tensorboard_receives_measures_losses_and_pictures(tensorboard, tmp_path):
    run = fit(tmp_path / "run", loggers=["tensorboard"])
    (writer,) = tensorboard
    assert writer.closed
    assert writer.folder == str(run.path / "tensorboard")
    told = {(name, step): value for name, value, step in writer.scalars}
    for lap in run.laps:
        assert told["lap/predictive_log_likelihood", lap["lap"]] == lap["predictive_log_likelihood"]
    steps, losses = read_losses(RunDir(run.path), [1, 2])
    assert [(step, value) for name, value, step in writer.scalars if name == "training/loss"] == list(
        zip(steps, losses, strict=True)
    )
    assert steps[-1] == 2 * STEPS  # steps are counted over both laps
    assert [(name, step) for name, _, step in writer.images] == [
        (name, lap) for lap in range(3) for name in ("samples", "posterior")
    ]
    assert all(image.dtype == np.uint8 and image.shape[-1] == 3 and image.std() > 0 for _, image, _ in writer.images)


def test_weights_and_biases_receives_the_same_on_two_axes(wandb, tmp_path):
    run = fit(tmp_path / "run", loggers=["wandb"])
    (board,) = wandb
    assert board.finished
    assert board.options["project"] == "diffem"
    assert board.options["config"]["train"]["steps"] == STEPS
    assert (board.axes["lap/*"], board.axes["training/*"]) == ("lap", "step")
    measured = {entry["lap"]: entry for entry in board.logged if "lap/seconds" in entry}
    assert [measured[k]["lap/predictive_log_likelihood"] for k in range(3)] == [
        lap["predictive_log_likelihood"] for lap in run.laps
    ]
    assert [entry["step"] for entry in board.logged if "training/loss" in entry][-1] == 2 * STEPS
    assert sum("lap/samples" in entry for entry in board.logged) == 3


@pytest.mark.usefixtures("pictures_undrawn")
def test_a_finished_run_is_written_once(tensorboard, wandb, tmp_path):
    fit(tmp_path / "run")
    fit(tmp_path / "run", loggers=["tensorboard", "wandb"])
    fit(tmp_path / "run", loggers=["wandb"])
    assert len(tensorboard) == len(wandb) == 1
    assert {step for name, _, step in tensorboard[0].scalars if name.startswith("lap/")} == {0, 1, 2}
    (tmp_path / "run/logged.json").write_text("{")  # a damaged record is no error: all laps are written again
    fit(tmp_path / "run", loggers=["tensorboard"])
    assert len(tensorboard) == 2


@pytest.mark.usefixtures("pictures_undrawn")
def test_a_resumed_run_writes_the_laps_that_are_new(wandb, tmp_path):
    fit(tmp_path / "run", laps=1, loggers=["wandb"])
    fit(tmp_path / "run", loggers=["wandb"])
    assert [sorted({e["lap"] for e in board.logged if "lap" in e}) for board in wandb] == [[0, 1], [2]]
    assert wandb[0].options["id"] == wandb[1].options["id"]
    assert wandb[1].options["resume"] == "allow"
    assert next(e["step"] for e in wandb[1].logged if "step" in e) > STEPS


def test_a_logger_that_fails_does_not_end_the_run(tensorboard, monkeypatch, tmp_path):
    def broken(self, *values):
        raise OSError("no space")

    monkeypatch.setattr(Writer, "add_scalar", broken)
    with pytest.warns(RunWarning, match="tensorboard failed: OSError: no space; the run continues"):
        run = fit(tmp_path / "run", loggers=["tensorboard"])
    assert len(run.laps) == 3


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "torch.utils.tensorboard"), ("wandb", "wandb")])
def test_a_logger_that_is_not_installed_is_rejected_before_the_run(name, module, monkeypatch, tmp_path):
    found = importlib.import_module

    def missing(wanted, *rest):
        if wanted == module:
            raise ImportError(wanted)
        return found(wanted, *rest)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(InputError, match=rf"{name} is not installed: pip install 'diffem\[{name}\]'"):
        fit(tmp_path / "run", loggers=[name])
    assert not (tmp_path / "run").exists()


def test_an_unknown_logger_is_refused(tmp_path):
    with pytest.raises(InputError, match="unknown logger 'mlflow'; known: tensorboard, wandb"):
        fit(tmp_path / "run", loggers=["mlflow"])
    result = command("fit", "digits", "-o", tmp_path / "run", "--logger", "mlflow")
    assert result.returncode == 2
    assert "unknown logger 'mlflow'" in result.stderr


def test_nothing_is_imported_without_a_logger(monkeypatch, tmp_path):
    usual = builtins.__import__

    def guarded(name, *rest):
        assert name.split(".")[0] not in ("tensorboard", "wandb")
        return usual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", guarded)
    fit(tmp_path / "run")
    assert not (tmp_path / "run/logged.json").exists()
