"""Runs with the conditional E-step: stages, resume, and the choice of the method."""

from __future__ import annotations

import math
import random
import signal

import pytest
import torch

import diffem
from diffem import InputError, Observations, operators
from diffem.priors.diffusion import DiffusionPrior
from diffem.runs.recipe import load_recipe

from .events import start
from .small import CONDITIONAL, observations
from .test_resume import contents, same


@pytest.mark.parametrize(
    "phases", [("002 M",), pytest.param(("001 M", "002 E", "002 M", "002 saving"), marks=pytest.mark.slow)]
)
def test_a_killed_run_with_a_kept_optimizer_resumes_bit_for_bit(phases: tuple[str, ...], tmp_path) -> None:
    """SIGKILL in E, in M and while a lap is saved; resumed, the run ends with the same weights and draws."""
    reference = tmp_path / "undisturbed"
    code, events, errors = start(reference, recipe="CONDITIONAL").communicate()
    assert code == 0, errors
    lines, rng, out = events.splitlines(), random.Random(5), tmp_path / "killed"
    for where in phases:
        code, _, errors = start(
            out, "kill", where, rng.randint(1, lines.count(where)), recipe="CONDITIONAL"
        ).communicate()
        assert code == -signal.SIGKILL, (where, errors)
    code, _, errors = start(out, recipe="CONDITIONAL").communicate()
    assert code == 0, errors
    assert same(contents(out), contents(reference))


def test_every_lap_is_evaluated_on_held_out_observations(conditional_run: diffem.Run) -> None:
    for lap in conditional_run.laps[1:]:
        assert len(lap["predictive_each"]) == 16  # every held-out observation
        assert math.isfinite(lap["predictive_log_likelihood"])
        # draws explain what they were conditioned on: 16 observations of about 3 values, χ² within a factor of 3
        assert 1 / 3 < lap["heldout_chi2"] / lap["expected_chi2"] < 3


def test_the_last_stage_changes_only_its_laps(conditional_run: diffem.Run) -> None:
    assert [lap["steps"] for lap in conditional_run.laps[1:]] == [40, 48]
    # the last one is kept: more laps may follow
    assert [file.parent.name for file in conditional_run.path.glob("laps/*/optimizer.safetensors")] == ["002"]


def test_the_method_depends_on_the_operators_of_the_training(conditional_run: diffem.Run) -> None:
    prior = conditional_run.prior
    assert isinstance(prior, DiffusionPrior)
    assert prior.posterior(observations(8)).method == "conditional"
    assert prior.posterior(observations(8), iterations=2).method == "mmps"
    noisy = Observations(observations(8).y, observations(8).A, sigma=3.0)
    assert prior.posterior(noisy).method == "mmps"
    with pytest.warns(UserWarning, match="share of x is .* trained for"):
        prior.posterior(noisy, method="conditional")
    dense = Observations(torch.zeros(2, 3), operators.Dense(torch.randn(3, 4)), sigma=0.1)
    assert prior.posterior(dense).method == "mmps"
    with pytest.raises(InputError, match="trained for Mask"):
        prior.posterior(dense, method="conditional")
    whole = Observations(torch.zeros(2, 4), operators.Identity(), sigma=0.1)
    assert prior.posterior(whole).method == "exact"
    with pytest.raises(InputError, match="tds"):
        prior.posterior(observations(8)).sample(sampler="tds")


def test_stages_are_validated_with_the_recipe() -> None:
    recipe = load_recipe({**CONDITIONAL, "stages": [{"lap": 2, "train": {"steps": 7, "noise": {"law": "lognormal"}}}]})
    assert (recipe.at(1).train.steps, recipe.at(2).train.steps, recipe.at(9).train.noise.law) == (272, 7, "lognormal")
    for stages, words in (
        ([{"lap": 2, "train": {"stepz": 7}}], "stepz"),
        ([{"lap": 2, "train": {"steps": 0}}], "steps"),
        ([{"lap": 3}, {"lap": 2}], "increase"),
        ([{"lap": 2, "e_step": {"shard": 7}}], "shard"),
    ):
        with pytest.raises(InputError, match=words):
            load_recipe({**CONDITIONAL, "stages": stages})


def test_a_matrix_free_run_is_reproducible(tmp_path) -> None:
    """Images too large for eigenvectors, halved in size: trained on simulated measurements, bit-identical each time."""
    generator = torch.Generator().manual_seed(0)
    A = operators.Downsample(2)
    y = A(torch.randn(12, 1, 18, 18, generator=generator))
    obs = Observations(y + 0.1 * torch.randn(y.shape, generator=generator), A, sigma=0.1)
    recipe = {
        **CONDITIONAL,
        "laps": 1,
        "stages": [],
        "network": {"kind": "mlp", "hidden": [16], "embedding": 8},
        "gaussian": {"rank": 4, "rounds": 2},
        "e_step": {**CONDITIONAL["e_step"], "steps": 4},
        "train": {**CONDITIONAL["train"], "steps": 6, "first_steps": 6, "batch": 4},
        "watch": {"held_out": 4, "samples": 2, "draws": 2},
    }
    runs = [diffem.fit(obs, recipe, tmp_path / name, progress=False) for name in ("once", "again")]
    prior = runs[0].prior
    assert isinstance(prior, DiffusionPrior)
    assert prior.family is not None
    assert (prior.family.basis, prior.family.description) == ("products with Downsample", "correction")
    posterior = prior.posterior(obs[:3])
    assert posterior.method == "conditional"
    draws, stats = posterior.sample(steps=6, return_stats=True)
    assert (stats.forwards == 7).all()
    assert (stats.vjps == 0).all()
    assert torch.isfinite(draws).all()
    again = runs[1].prior.posterior(obs[:3]).sample(steps=6)
    assert torch.equal(again, draws)


def test_a_run_on_blurred_images_predicts_hidden_values(tmp_path) -> None:
    """A blur of which some values are hidden is not diagonal in frequencies: they are predicted with mmps."""
    generator = torch.Generator().manual_seed(0)
    A = operators.Blur(torch.full((3, 3), 1 / 9), "circular")
    y = A(torch.randn(40, 5, 6, generator=generator))
    obs = Observations(y + 0.1 * torch.randn(y.shape, generator=generator), A, sigma=0.1)
    recipe = {**CONDITIONAL, "laps": 1, "stages": [], "watch": {"held_out": 8, "samples": 4, "draws": 2}}
    run = diffem.fit(obs, recipe, tmp_path / "run", progress=False)
    assert math.isfinite(run.laps[1]["predictive_log_likelihood"])
    assert run.prior.posterior(obs[:2]).method == "conditional"
