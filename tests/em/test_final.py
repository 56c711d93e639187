"""The final prior: how its stage changes the recipe, and the network that it may change."""

import pytest
import torch

import diffem
from diffem import InputError
from diffem.em.start import denoiser_to_train
from diffem.nn.networks import make_network
from diffem.priors import DiffusionPrior, GaussianPrior
from diffem.runs.commented import commented
from diffem.runs.recipe import load_recipe
from diffem.runs.steps import resolve_steps

from .small import CONDITIONAL, observations

FINAL = {"e_step": {"draws": 3}, "train": {"steps": 30, "ema": 0.99}, "network": {"hidden": [16, 16, 16]}}


def test_the_final_stage_is_a_separate_lap_and_trains_the_prior_alone():
    changes = {"final": FINAL, "laps": 2, "train.measured": 0.8, "e_step.fresh": {"value": 0.5, "halve": 2.0}}
    recipe = load_recipe(CONDITIONAL, {**changes, "train.schedule": "constant"})
    assert recipe.last_lap == 3
    before, final = recipe.at(2), recipe.at(3)
    assert (before.e_step.draws, before.train.measured, before.network) == (1, 0.8, recipe.network)
    assert (final.e_step.draws, final.e_step.fresh_at(3)) == (3, 1.0)
    train = final.train
    assert (train.measured, train.conditioned, train.schedule, train.restart) == (0.0, 0.0, "linear", True)
    assert (train.steps, train.batch, train.ema) == (30, recipe.train.batch, 0.99)
    assert final.network.options("kind") == {**recipe.network.options("kind"), "hidden": [16, 16, 16]}
    assert load_recipe(recipe.model_dump()) == recipe
    assert "final:" in commented(recipe)


def test_stages_after_the_last_lap_do_not_change_the_final_stage():
    stages = [{"lap": 2, "train": {"ema": 0.9}}, {"lap": 9, "train": {"lr": 1e-5, "batch": 7}}]
    recipe = load_recipe(CONDITIONAL, {"final": FINAL, "stages": stages, "laps": 0})
    plain = load_recipe(CONDITIONAL, {"final": FINAL, "laps": 0})
    assert recipe.at(1) == plain.at(1)  # neither stage is reached: the final lap is number 1
    assert load_recipe(recipe, {"laps": 4}).at(5).train == plain.at(1).train  # its own `ema` replaces that of lap 2
    assert load_recipe("cifar10-table1", {"laps": 0}).at(1).train.lr == 1e-3


def test_the_steps_of_the_final_stage_may_be_given_in_epochs():
    recipe = load_recipe(CONDITIONAL, {"final": {"train": {"steps": {"epochs": 2}}}, "watch.held_out": 0})
    assert resolve_steps(recipe, 160).at(3).train.steps == 20  # two passes over 160 in batches of 16


def test_a_wrong_final_stage_is_rejected():
    for final, words in (
        ({"train": {"step": 1}}, "step"),
        ({"e_step": {"draws": 0}}, "draws"),
        ({"e_step": {"shard": 7}}, "the same in all laps"),
        ({"draws": 4}, "final.draws"),
    ):
        with pytest.raises(InputError, match=words):
            load_recipe(CONDITIONAL, {"final": final})
    with pytest.raises(InputError, match="greater than or equal to 1 in a recipe without final"):
        load_recipe(CONDITIONAL, {"laps": 0, "stages": []})
    recipe = load_recipe(CONDITIONAL, {"final": {"network": {"hidden": "wide"}}})
    with pytest.raises(InputError, match="hidden"):
        diffem.fit(observations(), recipe, "nowhere", progress=False)


def prior(**settings):
    settings = {"kind": "mlp", "hidden": [8, 8], "embedding": 8, **settings}
    torch.manual_seed(1)
    network = make_network("mlp", (4,), {name: v for name, v in settings.items() if name != "kind"})
    return DiffusionPrior(network, mean=torch.zeros(4), settings=settings)


def test_weights_of_the_same_shape_are_kept_and_others_are_random():
    recipe, start = load_recipe(CONDITIONAL), GaussianPrior(torch.zeros(4), torch.eye(4))
    before = prior()
    wider, dropping = ({**before.settings, **change} for change in ({"hidden": [12]}, {"dropout": 0.3}))
    assert denoiser_to_train(before, start, recipe, None, dict(before.settings)).network is before.network
    kept = denoiser_to_train(before, start, recipe, None, dropping)
    assert kept.settings == dropping
    for weights, same in zip(before.network.parameters(), kept.network.parameters(), strict=True):
        assert torch.equal(weights, same)
    first, again = (denoiser_to_train(before, start, recipe, None, wider) for _ in range(2))
    assert first.settings == wider
    for name, weights in first.network.state_dict().items():
        assert torch.equal(again.network.state_dict()[name], weights)  # addressed by the seed


def test_a_conditional_run_may_end_with_an_ordinary_network_of_another_size(tmp_path):
    """Draws come from the conditional network of the laps; the last prior has no inputs for operators, and mmps
    conditions it."""
    train = {**CONDITIONAL["train"], "steps": 20}
    recipe = {**CONDITIONAL, "laps": 1, "stages": [], "train": train, "final": FINAL}
    run = diffem.fit(observations(), recipe, tmp_path / "run", progress=False, report=False)
    assert len(run.laps) == 3
    laps, final = run.load(1), run.prior
    assert laps.family is not None
    assert final.family is None
    assert final.settings["hidden"] == [16, 16, 16]
    assert run.laps[2]["draws"] == 3 * 120
    assert run.laps[2]["steps"] == 30
    assert run.laps[2]["heldout_chi2"] > 0
    assert "trained the prior alone" in " ".join(run.laps[2]["notes"])
