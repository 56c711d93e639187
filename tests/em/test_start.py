"""Runs that start from a given prior, and the content of a run's files."""

import pytest
import torch

import diffem
from diffem import Observations, priors
from diffem.em.start import Fitting, gaussian_start
from diffem.em.start_plan import plan_start
from diffem.priors.files import load_prior, save_prior
from diffem.runs.recipe import load_recipe
from diffem.runs.sections import Gaussian

from .small import RECIPE, observations

CPU = Fitting(torch.device("cpu"))
QUICK = {**RECIPE, "laps": 1, "train": {**RECIPE["train"], "steps": 64}}


def test_start_from_a_prior(tmp_path):
    """A given Gaussian replaces the fit; a given network is also trained further from its weights."""
    given = priors.GaussianPrior(torch.zeros(4), torch.eye(4))
    run = diffem.fit(observations(), QUICK, tmp_path / "gaussian", start=given, progress=False)
    assert torch.equal(diffem.load(run.path, 0).covariance().matrix()[0], torch.eye(4))
    learned = run.prior
    again = diffem.fit(observations(), QUICK, tmp_path / "learned", start=learned, progress=False)
    assert again.laps[0]["start"] == "given"
    first = diffem.load(again.path, 0)
    assert torch.equal(first(torch.ones(1, 4), 1.0), learned(torch.ones(1, 4), 1.0))
    # trained on from the given weights: close to them, and not the same
    a, b = (torch.cat([w.flatten() for w in p.network.parameters()]) for p in (learned, again.prior))
    assert 0 < float((a - b).norm() / a.norm()) < 0.5


def test_precise_observations_do_not_change_the_range_of_the_prior():
    """Their draws extend below sigma_min, those of other observations and samples of the prior do not."""
    recipe, obs = load_recipe({**RECIPE, "gaussian": {"rounds": 4}}), observations()
    noise = torch.full((len(obs),), 0.1)
    noise[3] = 1e-5
    prior, _ = gaussian_start(recipe, Observations(obs.y, obs.A, sigma=noise), CPU)
    assert prior.sigma_min == recipe.sigma_min * prior.scale
    levels = prior.posterior(Observations(obs.y, obs.A, sigma=noise), "mmps").last_levels
    assert levels[3] < 1e-5 / 3
    assert (levels[4:] == prior.sigma_min).all()


def test_start_from_a_run_on_disk(tmp_path):
    run = diffem.fit(observations(), QUICK, tmp_path / "first", progress=False)
    again = diffem.fit(observations(), {**QUICK, "start": str(run.path)}, tmp_path / "second", progress=False)
    x = torch.ones(1, 4)
    assert torch.equal(diffem.load(again.path, 0)(x, 1.0), run.prior(x, 1.0))


def test_a_rank_that_small_samples_do_not_have_is_a_full_covariance():
    full, high = (
        gaussian_start(load_recipe({**RECIPE, "gaussian": {"rounds": 4, **rank}}), observations(), CPU)
        for rank in ({}, {"rank": 64})  # samples have 4 values
    )
    assert torch.equal(full[0].sample(8, seed=0), high[0].sample(8, seed=0))
    plans = [plan_start(Gaussian(rank=rank), observations(), torch.device("cpu"), 0) for rank in (None, 64)]
    assert torch.equal(*(plan.observations for plan in plans))
    assert plans[0].moments == plans[1].moments


def test_a_start_of_another_shape_is_rejected(tmp_path):
    with pytest.raises(ValueError, match=r"samples of shape \(4,\).*got \(3,\)"):
        diffem.fit(observations(), QUICK, tmp_path / "run", start=priors.GaussianPrior(torch.zeros(3), torch.eye(3)))
    assert not (tmp_path / "run").exists()


def test_a_start_that_cannot_be_read_leaves_no_run_behind(tmp_path):
    """The corrected command would be refused as one of another recipe."""
    with pytest.raises(ValueError, match="nowhere is not a run"):
        diffem.fit(observations(), {**QUICK, "start": str(tmp_path / "nowhere")}, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_start_that_was_deleted_is_not_needed_after_lap_zero(tmp_path):
    save_prior(priors.GaussianPrior(torch.zeros(4), torch.eye(4)), tmp_path / "start.safetensors")
    recipe = {**QUICK, "start": str(tmp_path / "start.safetensors")}
    diffem.fit(observations(), recipe, tmp_path / "run", progress=False, report=False)
    (tmp_path / "start.safetensors").unlink()
    again = diffem.fit(observations(), {**recipe, "laps": 2}, tmp_path / "run", progress=False, report=False)
    assert len(again.laps) == 3


def test_other_observations_are_rejected(tmp_path):
    diffem.fit(observations(), QUICK, tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match="other observations"):
        diffem.fit(observations(seed=1), QUICK, tmp_path / "run", progress=False)


def test_too_many_held_out(tmp_path):
    recipe = {**QUICK, "watch": {"held_out": 500}}
    with pytest.raises(ValueError, match=r"held_out = 500 leaves none of 136 observations"):
        diffem.fit(observations(), recipe, tmp_path / "run", progress=False)


@pytest.mark.parametrize("kind", ["dense", "low rank", "diffusion"])
def test_priors_survive_saving(kind, tmp_path):
    from diffem.linalg import LowRank
    from diffem.nn import MLP

    torch.manual_seed(0)
    if kind == "dense":
        prior = priors.GaussianPrior(torch.randn(3), torch.eye(3) + 0.1)
    elif kind == "low rank":
        prior = priors.GaussianPrior(torch.randn(2, 3), LowRank(torch.randn(2, 2, 3), 0.5), sigma_max=7.0)
    else:
        settings = {"kind": "mlp", "hidden": [8], "embedding": 8}
        prior = priors.DiffusionPrior(MLP((2, 3), (8,), 8), mean=torch.randn(2, 3), settings=settings)
    save_prior(prior, tmp_path / "p.safetensors")
    again = load_prior(tmp_path / "p.safetensors")
    x = torch.randn(5, *prior.event_shape)
    assert torch.equal(again(x, 0.7), prior.eval()(x, 0.7))
    assert (again.sigma_min, again.sigma_max) == (prior.sigma_min, prior.sigma_max)
    assert not any(p.requires_grad for p in again.parameters())


def test_a_network_without_settings_cannot_be_saved(tmp_path):
    from diffem.nn import MLP

    with pytest.raises(ValueError, match="settings="):
        save_prior(priors.DiffusionPrior(MLP((2,), (4,), 8)), tmp_path / "p.safetensors")
