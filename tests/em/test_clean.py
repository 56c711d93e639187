"""Clean data: the E-step returns the observations unchanged, and the rest of a run is as usual."""

import numpy as np
import pytest
import torch

import diffem
from diffem import Observations, operators
from diffem.core.interruption import Interruption, Preempted
from diffem.datasets.digits import images
from diffem.em.split import split
from diffem.runs.recipe import load_recipe
from diffem.runs.sources import make_problem

from .small import RECIPE, observations
from .test_resume import contents, same

CLEAN = {
    **RECIPE,
    "data": {"source": "digits", "missing": 0, "sigma": 0},
    "laps": 1,
    "e_step": {"clean": True, "steps": 4, "shard": 700},
    "train": RECIPE["train"],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    torch.set_num_threads(1)
    return diffem.fit(None, CLEAN, tmp_path_factory.mktemp("clean") / "run", progress=False)


def test_the_draws_are_the_data_bit_for_bit(run):
    shards = [np.load(file)[0] for file in sorted(run.path.glob("laps/001/draws/*.npy"))]
    assert [len(shard) for shard in shards] == [700, 700, 381]
    trained, _ = split(1797, 16)
    assert np.array_equal(np.concatenate(shards), images()[trained].numpy())


def test_a_run_on_clean_samples_is_evaluated_like_any_other(run):
    start, lap = run.laps
    assert (lap["draws"], lap["chi2"], lap["rejected"]) == (1781, 0, 0)
    # the median over 64 draws of 64 values each, whose χ² per value has a standard deviation of 0.18; only 16 are
    # independent
    assert start["heldout_chi2"] == pytest.approx(1, abs=0.2)
    assert {"predictive_log_likelihood", "observation_distance", "loss", "m_seconds"} <= lap.keys()
    assert run.prior.sample(2, steps=4, progress=False).shape == (2, 8, 8)


def test_a_users_own_arrays(run, tmp_path):
    """The same data through the Python interface are the same run."""
    again = diffem.fit(Observations.clean(images()), CLEAN, tmp_path / "own", progress=False)
    assert same(contents(again.path), contents(run.path))


@pytest.mark.parametrize("event", ["expectation", "lap"])
def test_a_stopped_run_with_clean_samples_resumes_identically(event, run, tmp_path):
    interruption = Interruption()

    def on_event(name, data):
        interruption.requested = interruption.requested or name == event

    with pytest.raises(Preempted):
        diffem.fit(None, CLEAN, tmp_path / "run", progress=False, on_event=on_event, interruption=interruption)
    resumed = diffem.fit(None, CLEAN, tmp_path / "run", progress=False)
    assert same(contents(resumed.path), contents(run.path))


def test_sources_give_their_images_as_they_are():
    problem = make_problem("digits", 5, {"missing": 0, "sigma": 0})
    assert torch.equal(problem.obs.y, images())
    assert isinstance(problem.obs.A, operators.Identity)
    # what is missing without noise, or noisy without gaps, is not clean
    with pytest.raises(ValueError, match="sigma must be positive"):
        make_problem("digits", 0, {"missing": 0.5, "sigma": 0})
    assert isinstance(make_problem("digits", 0, {"missing": 0, "sigma": 0.1}).obs.A, operators.Mask)


def test_observations_that_are_not_clean_are_rejected(tmp_path):
    def refused(obs, words):
        with pytest.raises(ValueError, match=words):
            diffem.fit(obs, CLEAN, tmp_path / "run", progress=False)
        assert not (tmp_path / "run").exists()

    refused(observations(), r"the operator Identity, got Mask.*Observations\.clean")
    noisy = Observations(images(), operators.Identity(), sigma=0.1)
    refused(noisy, r"at most 1% of the standard deviation of the data, got 0\.1 and 1\.\d+")
    with pytest.raises(ValueError, match="got Dense"):
        diffem.fit(None, {**CLEAN, "data": {"source": "manifold", "n": 64}}, tmp_path / "run", progress=False)
    with pytest.raises(ValueError, match=r"e_step: .*one of each: remove draws"):
        load_recipe(CLEAN, {"e_step.draws": 2})
