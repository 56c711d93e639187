"""An exported prior is accepted wherever a run is: `diffem.load`, `sample`, `posterior` and the app."""

import json
import sys
import urllib.request
from importlib.resources import files

import numpy as np
import pytest
import torch

import diffem
from diffem import InputError, Observations, operators
from diffem.app import drawing, observing, panels, status
from diffem.app.exported import ExportedViewer
from diffem.core import progress
from diffem.em import exports as hub
from diffem.runs.recipe import load_recipe

from ..app.serving import served
from ..command import diffem as command

CHANGES = {
    "laps": 1, "train.steps": 40, "train.first_steps": 40, "train.batch": 32, "network.hidden": [32],
    "e_step.steps": 3, "e_step.draws": 1, "e_step.iterations": 5, "e_step.redraws": 0, "gaussian.rounds": 3,
    "watch.held_out": 16, "watch.samples": 32, "watch.draws": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("exports") / "run"
    return diffem.fit(None, "digits", out, changes=CHANGES, progress=False, report=False).path


@pytest.fixture(scope="module")
def exported(run):
    return hub.export_run(run, run.parent / "prior", range=(-2.0, 2.0))


def test_load_reads_an_export(run, exported):
    x = torch.randn(2, 8, 8)
    assert torch.equal(diffem.load(exported)(x, 1.0), diffem.load(run)(x, 1.0))
    assert torch.equal(diffem.load(exported, precision="recipe")(x, 1.0), diffem.load(run)(x, 1.0))
    for lap in (0, "best"):
        with pytest.raises(InputError, match=f"exported prior: it has no lap {lap}"):
            diffem.load(exported, lap=lap)


def test_samples_and_draws_are_those_of_the_run(run, exported, tmp_path):
    """Posteriors use the method and the number of iterations of the exported run."""
    obs = Observations(torch.randn(3, 8, 8), operators.Mask(torch.rand(3, 8, 8) < 0.5), sigma=0.1)
    obs.save(tmp_path / "obs.safetensors")
    for name, folder in (("run", run), ("prior", exported)):
        result = command("sample", folder, "-n", 3, "--steps", 3, "-o", tmp_path / f"{name}.npy")
        assert result.returncode == 0, result.stderr
        words = (
            "posterior",
            folder,
            tmp_path / "obs.safetensors",
            "-o",
            tmp_path / f"{name}.npz",
            "--draws",
            2,
            "--steps",
            3,
        )
        result = command(*words)
        assert result.returncode == 0, result.stderr
    assert np.array_equal(np.load(tmp_path / "run.npy"), np.load(tmp_path / "prior.npy"))
    assert np.array_equal(np.load(tmp_path / "run.npz")["draws"], np.load(tmp_path / "prior.npz")["draws"])
    result = command("sample", exported)
    assert result.returncode == 2
    assert "--out is required" in result.stderr


def test_the_app_opens_an_export(exported):
    viewer = ExportedViewer(exported, device="cpu")
    assert (viewer.last, viewer.event_shape, viewer.range) == (0, (8, 8), (-2.0, 2.0))
    expected = diffem.load(exported).sample(2, steps=3, seed=1, progress=False)
    assert torch.equal(drawing.prior_samples(viewer, 0, 2, 3, 1), expected)
    observed = observing.corrupt(expected[0], operators.Mask(torch.rand(8, 8) < 0.5), 0.1, 0, 1.0)
    assert drawing.condition(viewer, 0, observed, 2, 3, 0).draws.shape == (2, 8, 8)
    shown = panels.status(status.progress(viewer))
    assert "an exported prior" in shown
    assert "best" not in shown
    assert viewer.observation_choices() == []
    with pytest.raises(InputError, match="which has no observations"):
        ExportedViewer(exported, exported / "obs.safetensors")


def test_the_app_serves_an_export(exported):
    pytest.importorskip("gradio")
    with served(exported) as (address, _), urllib.request.urlopen(address, timeout=60) as page:
        assert "digits" in page.read().decode()


@pytest.mark.parametrize("kept", [None, 3, {"name": "x"}, {"recipe": 1}])
def test_a_card_with_another_recipe_falls_back_to_defaults(kept, exported, tmp_path):
    """The recipe of a card may be of another version or untrusted: it is not needed, and nothing in it is executed."""
    folder = hub.export(diffem.load(exported), tmp_path / "prior", training={} if kept is None else {"recipe": kept})
    assert hub.recipe_of_card(hub.read_card(folder)) is None
    assert ExportedViewer(folder, device="cpu").recipe.drawing == load_recipe("digits", {"e_step": {}}).drawing


@pytest.mark.parametrize("given", [[0, 1, 2], [2, 1], ["a", 1], [float("nan"), 1], 3])
def test_an_invalid_range_is_ignored(given, exported):
    card = hub.read_card(exported)
    assert hub.card_range(json.loads(json.dumps(card | {"range": given}))) is None


# further tests --------------------------------------------------------------------------------------------------------


def test_the_package_is_typed():
    assert (files("diffem") / "py.typed").is_file()


def test_bars_are_shown_in_notebooks_that_can_redraw_them(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipykernel", None)
    monkeypatch.setattr(progress, "find_spec", lambda name: object())
    assert progress.is_interactive()
    monkeypatch.setattr(progress, "find_spec", lambda name: None)
    assert not progress.is_interactive()
    monkeypatch.delitem(sys.modules, "ipykernel")
    assert not progress.is_interactive()
