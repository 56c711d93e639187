"""Observations that measure nothing, through a run: drawn from the prior, trained on, and left out of every measure."""

import json
import math

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import diffem
from diffem import Observations, operators, priors
from diffem.app import drawing, panels
from diffem.app.observing import ObservedSample
from diffem.cli.commands import app
from diffem.em import evaluation
from diffem.em.expectation import draw_shard
from diffem.em.screening import acceptable
from diffem.metrics import coverage, mse_unmeasured
from diffem.observations.problem import Problem
from diffem.runs.recipe import EStep
from diffem.runs.rundir import RunDir
from diffem.runs.sources import SOURCES

from .small import RECIPE, observations

N = 216
EMPTY = torch.arange(N) % 4 == 1


def some_empty(n=N):
    """The small run's observations, a quarter of them without a measured value."""
    obs = observations(n)
    mask = obs.measured & ~EMPTY[:n, None]
    return Observations(torch.where(mask, obs.y, torch.nan), operators.Mask(mask), sigma=0.1)


def test_which_observations_are_empty():
    obs = some_empty()
    assert torch.equal(obs.empty(), EMPTY)
    assert torch.equal(obs.informative().y, obs.y[~EMPTY])
    full = obs[(~EMPTY).nonzero().flatten()]
    assert full.informative() is full
    assert obs[EMPTY.nonzero().flatten()].informative() is None
    chi2 = obs.chi2(torch.zeros(N, 4))
    assert torch.equal(chi2.isnan(), EMPTY)


def test_counts_of_masks_with_axes_that_broadcast():
    mask = torch.rand(5, 1, 3, generator=torch.Generator().manual_seed(0)) < 0.5
    for A in (operators.Mask(mask), operators.Mask(mask[0]), operators.Identity()):
        obs = Observations(torch.zeros(5, 4, 3), A, sigma=1.0)
        ones = torch.ones(5, 4, 3, dtype=torch.bool)
        expected = ones if obs.measured is None else obs.measured & ones
        assert torch.equal(obs.counts(), expected.flatten(1).sum(1))


def test_draws_without_measurements_must_only_be_finite_and_within_the_bound():
    obs = some_empty(8)
    x = torch.where(obs.measured, obs.y, 0)
    assert acceptable(x, obs, 3.0, 10.0).all()
    x[1], x[5, 2] = 50.0, torch.nan  # both empty
    assert acceptable(x, obs, 3.0, 10.0).tolist() == [True, False, True, True, True, False, True, True]


@pytest.mark.parametrize(
    "options",
    [{}, {"sampler": "tds", "sampler_options": {"particles": 4}}, {"method": "dps", "chi2": 1e6}],
    ids=["mmps", "tds", "dps"],
)
def test_the_e_step_accepts_draws_of_empty_observations(options):
    """No draw of an empty observation is rejected, kept or replaced; χ² is the mean over the others' draws."""
    obs, empty = some_empty(), EMPTY.nonzero().flatten()
    prior = priors.MixturePrior(torch.ones(1), torch.zeros(1, 4), torch.ones(1), sigma_max=20.0)
    settings = {"seed": 0, "lap": 1, "bound": 10.0}
    shard = draw_shard(prior, obs, EStep(steps=18, draws=2, **options), index=torch.arange(N), **settings)
    alone = draw_shard(prior, obs[empty], EStep(steps=18, draws=2, **options), index=empty, **settings)
    assert alone.report["rejected"] == alone.report["informed"] == alone.report["chi2"] == 0
    assert torch.allclose(shard.x[:, empty], alone.x, atol=1e-5)
    # 108 draws of four independent numbers of spread 1: four standard errors of a standard deviation, and the sampler's
    # bias
    assert ((alone.x.flatten(0, 1).std(0) - 1).abs() < 4 / math.sqrt(2 * 108) + 0.02).all()
    rest = (~EMPTY).nonzero().flatten()
    assert shard.report["informed"] == 2 * len(rest)
    chi2 = torch.stack([obs[rest].chi2(d[rest]) for d in shard.x]).mean()
    assert shard.report["chi2"] == pytest.approx(float(chi2), rel=1e-5)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Two laps on these observations, read from a file, with the true x."""
    folder = tmp_path_factory.mktemp("empty")
    some_empty().save(folder / "obs.safetensors")
    recipe = RECIPE | {"data": {"source": "file", "path": str(folder / "obs.safetensors")}}
    changes = {"train.steps": 300, "train.batch": 64, "e_step.steps": 18, "e_step.fresh": 1.0}
    return diffem.fit(None, recipe, folder / "run", changes=changes, progress=False)


def test_draws_of_empty_observations_are_samples_of_the_prior(run):
    """Lap 1 has the spread of the Gaussian start, lap 2 that of lap 1's network; they were all the mean, with no
    spread."""
    laps = RunDir(run.path)
    keep = torch.ones(N, dtype=torch.bool)
    keep[(torch.arange(16) * N) // 16] = False  # held out
    empty = EMPTY[keep]
    for lap in (1, 2):
        draws = torch.cat([torch.from_numpy(np.load(f)) for f in sorted((laps.lap(lap) / "draws").glob("*.npy"))], 1)[0]
        x = draws[empty]
        before = diffem.load(run.path, lap - 1)
        expected = before.sample(2000, steps=64, seed=1)
        spread = expected.std(0)
        # 53 draws: four standard errors of mean and spread, those of 2,000 samples besides
        assert ((x.mean(0) - expected.mean(0)).abs() < 4 * spread * math.sqrt(1 / len(x) + 1 / 2000)).all()
        # fourth moments of the curve's coordinates are below a Gaussian's: its standard error holds
        assert ((x.std(0) / spread - 1).abs() < 4 * math.sqrt(0.5 * (1 / len(x) + 1 / 2000))).all()
        metrics = run.laps[lap]
        assert metrics["replaced"] == 0
        assert 0.3 < metrics["chi2"] < 3
        assert 0.2 < metrics["heldout_chi2"] < 2
        assert math.isfinite(metrics["expected_chi2"])
        assert math.isfinite(metrics["predictive_log_likelihood"])
        assert math.isfinite(metrics["observation_distance"])


def test_a_note_counts_empty_observations(run):
    assert [note for note in run.laps[0]["notes"] if "no value was measured" in note] == [
        "no value was measured in 50 of 200 observations: draws for these are samples of the prior, "
        "and all metrics exclude them"
    ]


def test_a_set_without_any_measurement_is_rejected(tmp_path):
    obs = Observations(torch.zeros(40, 4), operators.Mask(torch.zeros(40, 4)), sigma=0.1)
    with pytest.raises(ValueError, match="none of the training observations has a measured value"):
        diffem.fit(obs, RECIPE, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_evaluation_leaves_out_empty_observations(run, monkeypatch):
    obs, rest = some_empty(), (~EMPTY).nonzero().flatten()
    truth = torch.randn(N, 4, generator=torch.Generator().manual_seed(3))
    drawn = torch.randn(3, len(rest), 4, generator=torch.Generator().manual_seed(4))
    seen = []

    def draws(prior, some, *arguments):
        seen.append(some)
        return drawn

    monkeypatch.setitem(SOURCES, "file", lambda seed, **options: Problem(obs, truth))
    monkeypatch.setattr(evaluation, "posterior_draws", draws)
    results = evaluation.evaluate(run.path, "source", draws=3, samples=64, steps=8)
    assert torch.equal(seen[0].y, obs.y[rest])
    assert results["mse_draw"] == mse_unmeasured(drawn[0], truth[rest], obs[rest])
    assert results["coverage90"] == coverage(drawn, truth[rest])
    assert math.isfinite(results["observation_distance"])


def test_the_command_line_counts_empty_observations(run, tmp_path):
    some_empty().save(tmp_path / "o.safetensors")
    out = tmp_path / "draws.npz"
    result = CliRunner().invoke(
        app,
        ["posterior", str(run.path), str(tmp_path / "o.safetensors"), "-o", str(out), "--draws", "2", "--steps", "12"],
    )
    assert result.exit_code == 0, result.output
    assert "nan" not in result.output
    assert (
        f"no value was measured in {int(EMPTY.sum())} of them: draws for these are samples of the prior"
        in result.output
    )
    with np.load(out) as arrays:
        assert (np.isnan(arrays["chi2"]) == EMPTY.numpy()).all()
        assert np.isfinite(arrays["draws"]).all()
    nothing = Observations(torch.zeros(2, 4), operators.Mask(torch.zeros(2, 4)), sigma=0.1)
    nothing.save(tmp_path / "o.safetensors")
    result = CliRunner().invoke(
        app,
        ["posterior", str(run.path), str(tmp_path / "o.safetensors"), "-o", str(out), "--draws", "2", "--steps", "4"],
    )
    assert "χ²" not in result.output.splitlines()[0]


def test_the_page_shows_no_chi2_of_an_empty_observation(run):
    from diffem.app.viewer import Viewer

    viewer = Viewer(run.path)
    conditioned = drawing.condition(viewer, 2, ObservedSample(some_empty()[1]), draws=2, steps=4)
    page = panels.posterior(conditioned, (-2, 2), "")
    assert "nan" not in page.lower().split("base64")[0]
    assert "samples of the prior" in page
    assert "<b>–</b>χ²" in page


def test_reports_are_plain_json(run):
    for lap in (1, 2):
        for file in (RunDir(run.path).lap(lap) / "draws").glob("*.json"):
            json.loads(file.read_text(), parse_constant=lambda name: pytest.fail(name))
