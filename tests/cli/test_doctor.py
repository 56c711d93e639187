"""The estimates of `diffem doctor`, checked against values computed by hand."""

import json
import sys
import types

import pytest
import torch
from typer.testing import CliRunner

from diffem.cli import doctor
from diffem.cli.commands import app
from diffem.runs.recipe import load_recipe, names
from diffem.runs.sources import SOURCES, expected_size, make_problem

SMALL = doctor.Device("slow", "cpu", 4.0, 8.0, ["float32"], {"float32": 2.0e9})
RATES = {"float32": 3e14, "tf32": 3e14, "bf16": 7e14}
LARGE = doctor.Device("fast", "cuda", 140.0, 140.0, ["float32", "tf32", "bf16", "fp16"], RATES)


def recipe(**changes):
    return load_recipe("digits", {"network": {"kind": "mlp", "hidden": [100]}, **changes})


def test_the_cost_of_a_network_is_counted():
    """One hidden layer: 64 + embedding inputs, 100 hidden, 64 outputs; an a×b matrix product is 2ab operations."""
    parameters, flops, held = doctor.network_cost(recipe(), (8, 8))
    weights = list(doctor.make_network("mlp", (8, 8), {"hidden": [100]}).parameters())
    assert parameters == sum(p.numel() for p in weights)
    assert flops == sum(2 * p.numel() for p in weights if p.ndim == 2)
    # at least the input of each layer is kept for the backward pass, with four bytes per number
    assert held >= 4 * (64 + 100)


def test_time_is_proportional_to_the_work():
    once = doctor.estimate_fit(recipe(laps=1), SMALL).seconds
    # the first lap draws from the Gaussian start, so a run of one lap is training alone: three passes per sample
    flops = doctor.network_cost(recipe(), (8, 8))[1]
    assert once == pytest.approx(3 * 128 * 5000 * flops / (0.5 * 2e9))
    five, nine = (doctor.estimate_fit(recipe(laps=k), SMALL).seconds for k in (5, 9))
    assert nine - five == pytest.approx(five - once)


def test_particles_multiply_the_cost_and_kept_draws_cost_nothing():
    def drawing(**e_step):
        changes = {f"e_step.{key}": value for key, value in e_step.items()}
        return doctor.estimate_fit(recipe(laps=5, **changes), SMALL).seconds - training

    training = doctor.estimate_fit(recipe(laps=5, **{"e_step.clean": True, "e_step.draws": 1}), SMALL).seconds
    one = drawing(draws=1)
    assert drawing(draws=1, sampler="tds", sampler_options={"particles": 8}) == pytest.approx(8 * one)
    assert drawing(draws=4, sampler="tds", sampler_options={"particles": 8, "picks": 4}) == pytest.approx(8 * one)
    # laps 2 and 3 draw for all observations, laps 4 and 5 for half of them
    assert drawing(draws=1, fresh={"value": 0.5, "first": 4}) == pytest.approx(3 / 4 * one)
    # a correction is an evaluation, also if it is the default: 32 steps and the last denoising
    assert drawing(draws=1, sampler="pc") == pytest.approx((2 * 32 + 1) / (32 + 1) * one)


def test_a_conditional_network_needs_no_products():
    def drawing(**e_step):
        changes = {f"e_step.{key}": value for key, value in e_step.items()}
        return doctor.estimate_fit(recipe(laps=5, **changes), SMALL).seconds - training

    training = doctor.estimate_fit(recipe(laps=5, **{"e_step.clean": True, "e_step.draws": 1}), SMALL).seconds
    assert drawing(iterations=3) == pytest.approx(4 * drawing(method="conditional"))


def test_the_time_of_a_recipe_includes_the_changes_of_its_stages():
    def seconds(**changes):
        return doctor.estimate_fit(recipe(laps=4, **changes), SMALL).seconds

    last = seconds(stages=[{"lap": 4, "e_step": {"steps": 64}, "train": {"steps": 900}, "network": {"hidden": [200]}}])
    flops = {
        width: doctor.network_cost(recipe(network={"kind": "mlp", "hidden": [width]}), (8, 8))[1]
        for width in (100, 200)
    }
    once = recipe(laps=4)
    draws = (
        expected_size("digits", {})[1] * once.e_step.draws * (1 + once.e_step.iterations) * 32
    )  # 32 steps more, with the network of lap 3
    training = 3 * 128 * (900 * flops[200] - once.train.steps * flops[100])
    assert last - seconds() == pytest.approx((draws * flops[100] + training) / (0.5 * 2e9))


def test_every_recipe_gets_a_verdict():
    small, large = (
        {fit.recipe: fit for fit in (doctor.estimate_fit(load_recipe(name), device) for name in names())}
        for device in (SMALL, LARGE)
    )
    assert small["digits"].fits
    assert not small["cifar10"].fits
    assert "needs a GPU" in small["cifar10"].why
    assert large["cifar10-fast"].fits
    # the paper's network in bf16 takes about an hour per lap on such a device
    assert 16 * 3600 < large["cifar10"].seconds < 64 * 3600


def test_the_cost_of_a_recipe_for_own_data_depends_on_the_data():
    assert (
        doctor.estimate_fit(recipe(data={"source": "file", "path": "obs.safetensors"}), SMALL).why
        == "depends on the data"
    )


def test_the_size_of_the_data_comes_from_their_source(monkeypatch):
    """Every simulated source states its size; a source from outside the package can state it in the same way."""
    assert {name for name in SOURCES if expected_size(name, {}) is None} == {"file"}
    problem = make_problem("digits", 0, {})
    assert expected_size("digits", {}) == (problem.obs.x_shape, len(problem.obs))
    module = types.ModuleType("outside_source")
    module.ours, module.expected_size_of_ours = (lambda seed: problem), (lambda options: ((8, 8), 40))
    module.ours.__module__ = "outside_source"
    monkeypatch.setitem(sys.modules, "outside_source", module)
    monkeypatch.setitem(SOURCES, "ours", "outside_source:ours")
    few = doctor.estimate_fit(recipe(laps=5, data={"source": "ours"}), SMALL).seconds
    assert few < doctor.estimate_fit(recipe(laps=5), SMALL).seconds


def test_a_batch_that_exceeds_memory_is_reported():
    tight = doctor.Device("tight", "cuda", 1.0, 1.0, ["float32"], {"float32": 1e15})
    fit = doctor.estimate_fit(load_recipe("cifar10-fast"), tight)
    assert not fit.fits
    assert "lower train.batch" in fit.why


def test_the_rate_of_matrix_products_is_measured():
    rate = doctor.matrix_rate(torch.device("cpu"), seconds=0.01)
    assert 1e8 < rate < 1e14  # any processor of the last decades reaches this rate


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (3, "less than a minute"),
        (60, "1 minute"),
        (59 * 60, "1 hour"),
        (3 * 86400, "3 days"),
        (123 * 86400, "120 days"),
    ],
)
def test_durations_have_one_figure_or_two(seconds, words):
    assert doctor.duration(seconds) == words


def test_the_command_prints_text_and_json(monkeypatch):
    # both calls must see the same speed: on a busy machine it varies, and with it which recipes are quick enough
    monkeypatch.setattr(doctor, "matrix_rate", lambda *arguments: 1e11)
    run = CliRunner().invoke(app, ["doctor", "--json"])
    values = json.loads(run.stdout)
    assert values["versions"]["torch"] == torch.__version__
    assert values["devices"][0]["kind"] == "cpu"
    assert {fit["recipe"] for fit in values["recipes"]} == set(names())
    text = CliRunner().invoke(app, ["doctor"]).stdout
    assert all(name in text for name in ("float32", "disk", "extras"))
    listed = {
        line.split()[0]: line.split()[1] for line in text.split("\nrecipes", 1)[1].splitlines() if line[:2] == "  "
    }
    assert {name: listed[name] for name in names()} == {
        fit["recipe"]: "yes" if fit["fits"] else "no" for fit in values["recipes"]
    }
