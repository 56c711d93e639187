"""Noise levels that a run estimates: from the start, through the laps, resumed, and in what the run reports."""

from __future__ import annotations

import copy
import shutil

import pytest
import torch
from typer.testing import CliRunner

import diffem
from diffem import InputError, Observations, operators
from diffem.cli.commands import app
from diffem.em.noise_update import combined
from diffem.em.unknowns import NoiseLearner
from diffem.priors.levels import NoiseLevels
from diffem.report.page import write_report
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import load_recipe
from tests.em.small import RECIPE

LEARNS = {**RECIPE, "gaussian": {"rounds": 16}, "e_step": {**RECIPE["e_step"], "fresh": 1.0}}


def observations(sigma: float = 0.1, n: int = 400, **options: object) -> Observations:
    """A circle in two of eight values, its double angle in a third, and five constant values; 70 % are measured."""
    generator = torch.Generator().manual_seed(3)
    angle = 6.3 * torch.rand(n, generator=generator)
    x = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos(), *torch.full((5, n), 0.5)], 1)
    mask = torch.rand(n, 8, generator=generator) < 0.7
    mask[:, 0] = True
    return Observations(
        x + sigma * torch.randn(n, 8, generator=generator), operators.Mask(mask), sigma="learn", **options
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return diffem.fit(observations(), LEARNS, tmp_path_factory.mktemp("noise") / "run", progress=False, report=False)


def test_a_run_estimates_the_noise_level_with_an_interval(run):
    # 1,300 measured values are constant: the standard error of their standard deviation is 2 %
    for lap in run.laps:
        assert lap["noise_sigma"] == pytest.approx(0.1, rel=0.06)
        assert lap["noise_low"][0] < lap["noise_levels"][0] < lap["noise_high"][0]
    assert run.laps[0]["noise_determined"]
    assert any("the noise level is 0.0" in note for note in run.laps[-1]["notes"])


def test_the_prior_carries_the_level_and_conditions_with_it(run):
    prior = run.prior
    assert prior.noise.sigma == tuple(run.laps[-1]["noise_levels"])
    unknown = observations()[:4]
    known = Observations(unknown.y, unknown.A, sigma=prior.noise.sigma[0])
    drawn = (prior.posterior(obs, method="mmps").sample(steps=4, progress=False) for obs in (unknown, known))
    assert torch.equal(*drawn)


def test_an_export_keeps_the_level(run, tmp_path):
    result = CliRunner().invoke(app, ["export", str(run.path), "-o", str(tmp_path / "export")])
    assert result.exit_code == 0
    assert diffem.load(tmp_path / "export").noise == run.prior.noise


def test_a_resumed_run_ends_with_the_same_bits(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    for name in ("prior.safetensors", "metrics.json"):
        (copy / "laps/002" / name).unlink()
    again = diffem.fit(observations(), LEARNS, copy, progress=False, report=False)
    assert again.laps[-1]["noise_levels"] == run.laps[-1]["noise_levels"]
    weights, resumed = (r.prior.state_dict() for r in (run, again))
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_a_run_that_continues_another_weighs_the_values_alike(run, tmp_path):
    """A network carries the Gaussian start that it comes from, whose weights tell constant values from free ones."""
    learner = NoiseLearner(observations(), torch.arange(400), load_recipe(LEARNS))
    gaussian, before = run.load(0), run.prior
    continued = copy.deepcopy(before)
    continued.noise = gaussian.noise
    store = DrawStore(tmp_path, 400, 400)
    store.write(0, before.posterior(observations(), method="mmps").sample(1, steps=4, progress=False), {})
    found = []
    for start in (gaussian, continued):
        learner.update(prior := copy.copy(before), before, start, store)
        found.append(prior.noise)
    assert found[0] == found[1]


def test_the_report_shows_the_path_of_the_level(run):
    text = write_report(run.path, observations()).read_text()
    assert "noise level" in text
    assert "(estimated)" in text


def test_clean_samples_have_no_noise_to_learn(tmp_path):
    with pytest.raises(InputError, match="leave out one of the two"):
        diffem.fit(observations(), {**LEARNS, "e_step": {"clean": True}}, tmp_path / "run", progress=False)


def test_a_prior_learned_with_known_noise_cannot_condition_on_unknown_noise():
    prior = diffem.priors.GaussianPrior(torch.zeros(8), torch.eye(8))
    with pytest.raises(InputError, match="pass sigma as a number"):
        prior.posterior(observations())


def test_the_draws_of_a_lap_do_not_lower_the_bound_of_a_level_that_is_not_determined():
    start, found = NoiseLevels((0.1,), (0.4,), False), NoiseLevels((0.05,), (0.01,), False)
    both = combined(start, found)
    assert 0.05 < both.sigma[0] < 0.1
    assert both.interval()[1] == pytest.approx(start.interval()[1], rel=1e-9)


@pytest.mark.parametrize(("n", "warns"), [(12, True), (200, False)])
def test_a_level_that_few_observations_leave_far_below_its_bound_causes_a_warning(n, warns, tmp_path):
    """The smallest eigenvalue of the covariance of few observations is far below the noise."""
    y = torch.randn(n, 16, generator=torch.Generator().manual_seed(0))
    recipe = {**LEARNS, "laps": 1, "train": {**LEARNS["train"], "steps": 16}, "watch": {"held_out": 4, "draws": 2}}
    first = diffem.fit(Observations(y, sigma="learn"), recipe, tmp_path / "run", progress=False, report=False).laps[0]
    texts = [text for text in first["warnings"] if "the observations allow up to" in text]
    assert len(texts) == warns
    if warns:
        assert first["noise_high"][0] > 2 * first["noise_levels"][0]
        assert f"uses {first['noise_levels'][0]:.2g} as the noise level" in texts[0]
    assert any(f"; the run uses {first['noise_levels'][0]:.3g}" in text for text in first["notes"])


def test_damaged_noise_levels_are_rejected():
    for note in (
        {"sigma": [0.1], "error": []},
        {"sigma": [-1.0], "error": [0.1], "is_determined": True},
        3,
    ):
        with pytest.raises(InputError, match="noise levels"):
            NoiseLevels.read(note)
