"""Arrays in `.npy` files as observations on the command line, without a line of Python."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import diffem
from diffem import InputError, Observations, operators
from diffem.cli.commands import app
from diffem.observations.observations_file import read_observations
from diffem.runs.recipe import load_recipe
from diffem.runs.sources import make_problem

FEW = ["laps=1", "train.steps=2", "train.first_steps=2", "watch={held_out: 4, draws: 2, samples: 2}", "e_step.steps=2"]


@pytest.fixture
def images(tmp_path):
    """Thirty noisy images of 4×4 pixels with gaps, in float64, in a file."""
    generator = np.random.default_rng(0)
    y = generator.normal(size=(30, 4, 4))
    y[generator.random(y.shape) < 0.3] = np.nan
    np.save(tmp_path / "images.npy", y)
    return tmp_path / "images.npy", y


@pytest.mark.parametrize("sigma", [0.1, "1e-1", [0.1] * 4])  # YAML reads 1e-1 as a string
def test_an_array_is_read_like_observations(images, sigma):
    path, y = images
    obs, same = make_problem("file", 0, {"path": str(path), "sigma": sigma}).obs, Observations(y, sigma=0.1)
    assert torch.equal(obs.y, same.y)
    assert torch.equal(obs.measured, same.measured)
    assert torch.equal(obs.cov.diagonal((4, 4)).expand(30, 4, 4), same.cov.diagonal((4, 4)).expand(30, 4, 4))


def test_fit_and_posterior_from_the_command_line(images, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fit = ["fit", "small-images", "-o", "run", "--set", "data={source: file, path: images.npy, sigma: 0.1}"]
    result = CliRunner().invoke(app, [*fit, *(word for change in FEW for word in ("--set", change))])
    assert result.exit_code == 0, result.output
    draw = ["posterior", "run", "images.npy", "-o", "draws.npz", "--draws", "2", "--steps", "2"]
    assert CliRunner().invoke(app, draw).exit_code != 0  # the noise level is missing
    result = CliRunner().invoke(app, [*draw, "--sigma", "0.1"])
    assert result.exit_code == 0, result.output
    prior, obs = diffem.load("run"), Observations(images[1], sigma=0.1)
    expected = prior.posterior(obs).sample(draws=2, steps=2)
    np.testing.assert_allclose(np.load("draws.npz")["draws"], expected, atol=1e-6)


def test_mistakes_are_explained(images, tmp_path):
    path, _ = images
    obs = Observations(np.ones((3, 2)), sigma=0.1)
    obs.save(tmp_path / "obs.safetensors")
    np.savez(tmp_path / "y.npz", y=np.ones((3, 2)))
    (tmp_path / "empty.npy").touch()
    for call, words in [
        (lambda: read_observations(path), "is an array: give its noise level too"),
        (lambda: read_observations(tmp_path / "obs.safetensors", 0.1), "contains its noise level"),
        (lambda: read_observations(tmp_path / "none.npy", 0.1), "none.npy cannot be read: No such file"),
        (lambda: read_observations(tmp_path), "is not a file but a folder"),
        (lambda: read_observations(tmp_path / "none.npz", 0.1), "none.npz cannot be read: No such file"),
        (lambda: read_observations(tmp_path / "y.npz", 0.1), "neither a .npy array nor a file of Observations.save"),
        (lambda: read_observations(tmp_path / "empty.npy", 0.1), "it has only 0 bytes"),
        (lambda: load_recipe({"name": "x", "data": "y.npy", "laps": 1}), "data must be a mapping.*got 'y.npy'"),
        (lambda: Observations.load(path), r"Observations\(np.load\(path\), sigma=...\)"),
        (lambda: load_recipe(str(path)), "is data, not a recipe"),
    ]:
        with pytest.raises(InputError, match=words):
            call()
    (tmp_path / "table.csv").write_text("a,b\n1,\n")
    for read in (read_observations, lambda path: load_recipe(str(path))):
        with pytest.raises(InputError, match=r"diffem impute .*table\.csv"):
            read(tmp_path / "table.csv")


def test_saved_observations_may_have_any_name(tmp_path):
    obs = Observations(torch.ones(2, 3), operators.Identity(), sigma=0.1)
    obs.save(tmp_path / "obs.npz")
    assert torch.equal(read_observations(tmp_path / "obs.npz")[:].y, obs.y)
