"""Recipes for the user's data: printed with comments, run in any units, with a number of steps that depends on the
number of observations."""

import re

import pytest
import torch
import yaml

import diffem
from diffem import Observations, operators
from diffem.nn import UNet
from diffem.nn.networks import make_network
from diffem.nn.padded import PaddedUNet
from diffem.priors import DiffusionPrior
from diffem.priors.files import load_prior, save_prior
from diffem.runs.commented import commented, describe
from diffem.runs.recipe import Epochs, Recipe, load_recipe, names
from diffem.runs.rundir import RunDir
from diffem.runs.steps import count_steps, resolve_steps

from ..command import diffem as command

OWN = ("small-images", "images", "table")
TINY = {
    "laps": 1, "network.hidden": [8], "e_step.steps": 3, "e_step.draws": 1, "gaussian.rounds": 2, "gaussian.rank": None, "watch.held_out": 8,  # noqa: E501
    "watch.samples": 4, "watch.draws": 2, "train.batch": 16, "train.steps": 5, "train.first_steps": {"epochs": 2, "least": 3},  # noqa: E501
}  # fmt: skip


def keys(model, prefix=""):
    """Every key of a recipe, with the section that holds it."""
    for name, field in model.model_fields.items():
        inner = field.annotation
        yield f"{prefix}{name}", model, name
        if isinstance(inner, type) and hasattr(inner, "model_fields"):
            yield from keys(inner, f"{prefix}{name}.")


@pytest.mark.parametrize(
    ("key", "model", "name"), list(keys(Recipe)), ids=lambda value: value if isinstance(value, str) else ""
)
def test_every_key_is_described(key, model, name):
    assert len(describe(key, model, name)) > 8


@pytest.mark.parametrize("name", names())
def test_a_printed_recipe_has_a_comment_above_every_key_and_is_the_recipe(name, tmp_path):
    result = command("recipes", name)
    assert result.returncode == 0
    (tmp_path / "mine.yaml").write_text(result.stdout)
    assert load_recipe(tmp_path / "mine.yaml") == load_recipe(name)
    lines = result.stdout.splitlines()
    assert max(len(line) for line in lines if line.lstrip().startswith("#")) <= 120
    for before, line in zip(["", *lines], lines, strict=False):
        if re.match(r" *(# )?[a-z_0-9]+:( |$)", line) and not re.match(r" *#   ", line):
            assert before.lstrip().startswith("#"), line


@pytest.mark.parametrize(("observations", "held_out"), [(2000, 48), (192, 48), (100, 25), (5, 1), (2, 0)])
def test_few_observations_are_mostly_for_training(observations, held_out):
    """The recipe holds out 48 rows; of a small table that would leave few or none to learn from."""
    assert resolve_steps(load_recipe("table"), observations).watch.held_out == held_out


def test_a_small_table_is_not_trained_on_for_longer_than_a_large_one():
    """178 rows, of which 44 are held out: 2,000 steps would be 1,900 epochs, and the network overfits."""
    steps = resolve_steps(load_recipe("table"), 178).train
    assert (steps.first_steps, steps.steps) == (629, 315)  # 600 and 300 epochs of 134 rows in batches of 128


def test_a_file_is_printed_too(tmp_path):
    (tmp_path / "mine.yaml").write_text(
        yaml.safe_dump({"name": "mine", "data": {"source": "given"}, "laps": 1, "train": {"steps": 3}})
    )
    assert commented(load_recipe(tmp_path / "mine.yaml")) == command("recipes", tmp_path / "mine.yaml").stdout
    assert command("recipes", "tabel").returncode == 2


# steps ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("observations", "steps"), [(10, 50), (1000, 100), (1001, 101), (100_000, 400)])
def test_steps_are_passes_over_the_observations_within_limits(observations, steps):
    """10 epochs of n observations in batches of 100: n/10 steps, at least 50 and at most 400."""
    assert count_steps(Epochs(epochs=10, least=50, most=400), observations, 100) == steps
    assert count_steps(7, observations, 100) == 7
    assert count_steps(None, observations, 100) is None


def test_held_out_observations_are_not_trained_on_and_stages_follow_too():
    recipe = load_recipe(
        "digits",
        {
            "train.batch": 10,
            "train.steps": {"epochs": 1},
            "train.first_steps": {"epochs": 3},
            "watch.held_out": 50,
            "stages": [{"lap": 2, "train": {"steps": {"epochs": 2}, "batch": 5}}, {"lap": 3, "train": {"lr": 1e-4}}],
        },
    )
    resolved = resolve_steps(recipe, 150)
    assert (resolved.train.steps_in(False), resolved.train.steps_in(True)) == (10, 30)
    assert resolved.at(2).train.steps == 40
    assert resolved.stages[1] == recipe.stages[1]
    assert resolve_steps(resolved, 99) is resolved
    with pytest.raises(ValueError, match="number of observations"):
        recipe.train.steps_in(True)


def test_passes_over_the_observations_are_those_of_the_batch_in_each_stage():
    changes = [{"lap": 2, "train": {"batch": 20}}, {"lap": 3, "train": {"steps": {"epochs": 4}}}]
    final = {"train": {"batch": 5}}
    recipe = load_recipe("digits", {"train.batch": 10, "train.steps": {"epochs": 2}, "stages": changes, "final": final})
    resolved = resolve_steps(recipe, 100 + recipe.watch.held_out)
    steps = [resolved.at(lap).train.steps for lap in (1, 2, 3, resolved.last_lap)]
    assert steps == [20, 10, 20, 80]  # 2, 2, 4 and 4 passes over 100 observations


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (0, "train.steps: input should be greater than or equal to 1, got 0"),
        ("many", "train.steps: input should be a valid integer.*got 'many'"),
        ({"epochs": 0}, "train.steps.epochs: input should be greater than 0"),
        ({"least": 3}, "'train.steps.epochs' is missing"),
        ({"epochs": 1, "leest": 3}, "unknown key 'train.steps.leest'; known here: epochs, least, most"),
        ({"epochs": 1, "least": 3, "most": 2}, "train.steps: least 3 must not exceed most 2"),
    ],
)
def test_wrong_steps_are_named_once(steps, words):
    with pytest.raises(ValueError, match=rf"^digits: {words}[^;]*$"):
        load_recipe("digits", {"train.steps": steps})


# own data -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OWN)
def test_recipes_for_own_data_contain_no_settings_of_other_data(name):
    recipe = load_recipe(name)
    assert recipe.data.source == "given"
    assert recipe.e_step.bound is None
    assert isinstance(recipe.train.steps, Epochs)
    assert isinstance(recipe.train.first_steps, Epochs)
    result = command("fit", name)
    assert result.returncode == 2
    assert "the observations are passed from Python" in result.stderr


@pytest.mark.parametrize(
    ("name", "shape"), [("small-images", (7, 6)), ("table", (5,)), ("images", (10, 9)), ("images", (2, 8, 8))]
)
def test_they_run_on_what_they_are_for(name, shape, tmp_path):
    """Data in any units; the run's recipe contains the resulting number of steps, and a copy of it can be used."""
    x = 1000 * torch.randn(60, *shape)
    y = torch.where(torch.rand(60, *shape) < 0.7, x, torch.nan)
    changes = TINY | ({"network.heads": [0]} if name == "images" else {})
    run = diffem.fit(y.numpy(), name, tmp_path / "run", sigma=50.0, changes=changes, progress=False)
    assert run.prior.event_shape == shape
    kept = RunDir(run.path).recipe()
    assert kept.train.first_steps == 7  # 2 · 52 / 16
    again = diffem.fit(y.numpy(), name, tmp_path / "run", sigma=50.0, changes=changes, progress=False)
    assert again.laps == run.laps
    (tmp_path / "copy.yaml").write_text((run.path / "recipe.yaml").read_text())
    assert load_recipe(tmp_path / "copy.yaml") == kept


def test_a_printed_recipe_runs_from_the_command_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Observations(torch.randn(60, 5), operators.Mask(torch.rand(60, 5) < 0.7), sigma=0.1).save("obs.safetensors")
    text = command("recipes", "table").stdout
    edited = text.replace("  source: given", "  source: file").replace("  # path:", "  path:")
    (tmp_path / "mine.yaml").write_text(edited)
    changes = [
        word
        for key, value in TINY.items()
        for word in ("--set", f"{key}={yaml.safe_dump(value, default_flow_style=True).splitlines()[0]}")
    ]
    result = command("fit", "mine.yaml", "-o", "run", *changes)
    assert result.returncode == 0, result.stderr
    assert RunDir("run").laps_done() == 1


# images of any size ---------------------------------------------------------------------------------------------------

UNET = {"hidden": [8, 16], "blocks": 1, "embedding": 8}


@pytest.mark.parametrize("shape", [(7, 6), (5, 5), (1, 7, 8), (3, 9, 5)])
def test_images_of_any_size(shape):
    torch.manual_seed(0)
    network = make_network("unet", shape, UNET).double()
    assert isinstance(network, PaddedUNet)
    x, log_sigma = torch.randn(3, *shape, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    y = network(x, log_sigma)
    assert y.shape == x.shape
    assert torch.allclose(network(x[1:2], log_sigma[1:2]), y[1:2], rtol=1e-12)  # samples do not see each other
    height, width = shape[-2:]
    inside = torch.nn.functional.pad(x.reshape(3, -1, height, width), (0, width % 2, 0, height % 2), mode="replicate")
    assert torch.equal(network.network(inside, log_sigma)[..., :height, :width].reshape(x.shape), y)


def test_images_that_fit_need_no_frame():
    assert isinstance(make_network("unet", (1, 8, 6), UNET), UNet)
    assert isinstance(make_network("unet", (4, 6), UNET), PaddedUNet)


def test_a_padded_prior_is_saved_and_conditional(tmp_path):
    torch.manual_seed(0)
    settings = {"kind": "unet", **UNET}
    prior = DiffusionPrior(make_network("unet", (5, 7), UNET), settings=settings, mean=torch.zeros(5, 7))
    save_prior(prior, tmp_path / "prior.safetensors")
    x = torch.randn(2, 5, 7)
    assert torch.equal(load_prior(tmp_path / "prior.safetensors")(x, 1.0), prior(x, 1.0))
    mask = torch.rand(60, 5, 7) < 0.7
    obs = Observations(torch.randn(60, 5, 7), operators.Mask(mask), sigma=0.1)
    changes = TINY | {"network.heads": [0], "e_step.method": "conditional", "laps": 2}
    run = diffem.fit(obs, "images", tmp_path / "run", changes=changes, progress=False)
    assert run.prior.posterior(obs[:2], method="conditional").sample(steps=2).shape == (2, 5, 7)


def test_the_list_begins_with_the_recipes_for_own_data_in_one_column():
    lines = command("recipes").stdout.splitlines()
    assert {line.split()[0] for line in lines[: len(OWN)]} == set(OWN)
    assert len({re.match(r"\S+ +", line).end() for line in lines}) == 1
