"""The held-out evaluation: measures with a known distribution under the right model, and warnings beyond chance."""

import math

import numpy as np
import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.em.context import SplitObservations
from diffem.em.diagnosis import warnings
from diffem.em.evaluation import evaluate
from diffem.em.held_out import chi2_median, expected_chi2, explained, measure_held_out
from diffem.em.lap_evaluation import evaluate_lap
from diffem.em.split import in_pictures
from diffem.em.validation import notes
from diffem.metrics.evidence import hidden_spread, hide
from diffem.metrics.log_density import unbiased_log_density
from diffem.runs.recipe import load_recipe

from ..exact import random_covariance

RECIPE = load_recipe("digits")
DOUBLE = torch.float64


@pytest.mark.parametrize("ratio", [0.1, 1.0, 3.0])
def test_the_last_denoising_reduces_the_residual(ratio):
    """Of draws under a wide prior, χ² is 1/(1 + σ²/σ_y²), σ the lowest level reached: their last denoising returns a
    mean."""
    sigma = 0.02
    torch.manual_seed(0)
    mask = torch.rand(64, 32) < 0.5
    prior = priors.GaussianPrior(torch.zeros(32), torch.eye(32), sigma_min=ratio * sigma)
    y = torch.where(mask, torch.randn(64, 32), 0)
    obs = Observations(y, operators.Mask(mask), sigma=sigma)
    posterior = prior.posterior(obs, iterations=1)
    measured = torch.stack([obs.chi2(d) for d in posterior.sample(8, steps=64)]).mean()
    expected = expected_chi2(obs, posterior.last_levels)
    assert float(measured) == pytest.approx(float(expected.mean()), rel=0.1)
    torch.testing.assert_close(expected, 1 / (1 + (posterior.last_levels / sigma) ** 2), rtol=1e-5, atol=0)


def test_the_median_of_chi2():
    """Known for two values, log 4 / 2; for others from tables."""
    medians = chi2_median(torch.tensor([1, 2, 10, 1, 1000]))
    assert float(medians[1]) == pytest.approx(math.log(4) / 2, rel=1e-12)
    assert medians.tolist() == pytest.approx([0.454936, 0.693147, 0.934182, 0.454936, 0.999333], abs=1e-6)


def exact_problem(values, n=400, seed=0):
    """A Gaussian prior over 6 numbers, and observations of `values` combinations of them."""
    generator = torch.Generator().manual_seed(seed)
    prior = priors.GaussianPrior(torch.zeros(6, dtype=DOUBLE), random_covariance(6, seed=3))
    A = operators.Dense(torch.randn(n, values, 6, dtype=DOUBLE, generator=generator))
    y = A(prior.exact_sample(torch.randn(n, 6, dtype=DOUBLE, generator=generator)))
    obs = Observations(y + 0.5 * torch.randn(n, values, dtype=DOUBLE, generator=generator), A, sigma=0.5)

    def draw(some, k=8):
        return torch.stack([prior.draw_posterior(some, draw=d) for d in range(k)])

    return prior, obs, draw


@pytest.mark.parametrize("values", [1, 2, 5])
def test_draws_of_the_right_posterior_have_the_expected_chi2(values):
    """With one value per observation the median of χ² itself is 0.45, and a limit of ½ flagged the right model."""
    _, obs, draw = exact_problem(values)
    measures = explained(draw(obs), obs, torch.zeros(len(obs)))
    # the median of 400 draws of a χ² law has a standard deviation of about 8 % for one value, and less for more
    assert measures["heldout_chi2"] == pytest.approx(1, abs=0.25)
    assert abs(measures["heldout_chi2_z"]) < 4
    twice = explained(3 * draw(obs), obs, torch.zeros(len(obs)))
    assert twice["heldout_chi2_z"] > 4


def test_values_are_predicted_and_covered():
    prior, obs, draw = exact_problem(5)
    measures = measure_held_out(prior, obs, lambda some: draw(some, 19), 0.2, seed=0)
    assert measures["hidden_coverage90"] == pytest.approx(0.9, abs=4 * measures["hidden_coverage90_error"])
    assert 0.01 < measures["hidden_coverage90_error"] < 0.03  # about 400 values
    each = measures["predictive_each"]
    assert len(each) == len(obs)
    assert sum(each) / len(each) == pytest.approx(measures["predictive_log_likelihood"], rel=1e-9)
    narrow = measure_held_out(prior, obs, lambda some: draw(some, 19) * 0 + prior.posterior_mean(some), 0.2, seed=0)
    assert narrow["hidden_coverage90"] < measures["hidden_coverage90"] - 0.02


def test_full_coverage_of_a_few_hidden_values_has_a_large_error():
    prior, obs, draw = exact_problem(5, n=4)
    measures = measure_held_out(prior, obs, draw, 0.2, seed=1)
    assert measures["hidden_coverage90_error"] > 0.03


def test_one_observation_with_a_hidden_value_gives_no_standard_error():
    prior, obs, draw = exact_problem(5, n=4)
    few = obs[:2]
    shares = (measure_held_out(prior, few, draw, 0.1, seed=seed) for seed in range(20))
    errors = {len([e for e in m["predictive_each"] if e]): m.get("predictive_error") for m in shares if len(m) > 4}
    assert errors[1] is None
    assert errors[2] > 0


def widened(prior, some, factor, k=8):
    """Draws with `factor` times the deviations of right ones."""
    mean = prior.posterior_mean(some)
    return torch.stack([mean + factor * (prior.draw_posterior(some, draw=d) - mean) for d in range(k)])


@pytest.mark.parametrize("k", [2, 8])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_the_spread_of_draws_is_compared_with_their_errors(factor, k):
    """Errors have the variance (1 + c²/k) v around the mean of k draws with deviations of c√v, which claim (1 + 1/k) c²
    v."""
    prior, obs, _ = exact_problem(5, n=2000)
    visible, hidden = hide(obs, 0.2, seed=0)
    spread = hidden_spread(widened(prior, visible, factor, k), obs, hidden)
    expected = (1 + factor**2 / k) / ((1 + 1 / k) * factor**2)
    # the noise has the variance of the signal here; 2,000 values with a relative error of √2 times twice that
    assert spread.ratio == pytest.approx(expected, rel=0.25)
    assert (abs(spread.z) < 4) if factor == 1 else (spread.z * (1 - factor) > 4 * abs(1 - factor))


def test_no_spread_without_hidden_values_or_without_draws_that_differ():
    prior, obs, draw = exact_problem(5, n=20)
    visible, hidden = hide(obs, 0.2, seed=0)
    assert hidden_spread(draw(visible), obs, hidden & False) is None
    assert hidden_spread(prior.posterior_mean(visible).expand(3, -1, -1), obs, hidden) is None


def test_draws_that_are_too_wide_are_reported():
    wide = {"lap": 2, "hidden_spread": 0.4, "hidden_spread_z": -6.0}
    assert "2.5 times the variance of their errors" in warnings([{"lap": 1}, wide], RECIPE)[0]
    assert warnings([{"lap": 1}, wide | {"hidden_spread": 0.8}], RECIPE) == []  # too little to matter
    assert warnings([{"lap": 1}, wide | {"hidden_spread_z": -2.0}], RECIPE) == []  # chance explains it
    assert (
        warnings([{"lap": 1}, wide | {"hidden_spread": 3.0, "hidden_spread_z": 9.0}], RECIPE) == []
    )  # coverage sees that


def test_a_run_measures_the_spread():
    prior, obs, draw = exact_problem(5)
    measures = measure_held_out(prior, obs, lambda some: draw(some, 19), 0.2, seed=0)
    assert abs(measures["hidden_spread_z"]) < 4
    wide = measure_held_out(prior, obs, lambda some: widened(prior, some, 3.0), 0.2, seed=0)
    assert "vary too much" in " ".join(warnings([{"lap": 1}, {"lap": 2, **wide}], RECIPE))


LAP = {"lap": 2, "heldout_chi2": 0.3, "expected_chi2": 0.5, "heldout_chi2_z": 9.0}


def test_residuals_are_compared_with_what_is_expected():
    assert warnings([{"lap": 1}, LAP], RECIPE) == []
    assert "should be about 1" in warnings([{"lap": 1}, LAP | {"expected_chi2": 1.0}], RECIPE)[0]
    assert "should be about 0.5" in warnings([{"lap": 1}, LAP | {"heldout_chi2": 1.1}], RECIPE)[0]


def test_deviations_within_chance_cause_no_warning():
    """The deviation exceeds a factor of two but is not significant."""
    lap = LAP | {"expected_chi2": 1.0, "heldout_chi2_z": 2.0, "hidden_coverage90": 0.7, "hidden_coverage90_error": 0.1}
    assert warnings([{"lap": 1}, lap], RECIPE) == []
    sure = lap | {"heldout_chi2_z": -8.0, "hidden_coverage90_error": 0.01}
    assert len(warnings([{"lap": 1}, sure], RECIPE)) == 2


def predicted(lap, each):
    return {"lap": lap, "predictive_each": each.tolist(), "predictive_log_likelihood": float(each.mean())}


def test_laps_are_compared_observation_by_observation():
    """A loss that all observations share is significant, although observations differ much more from each other."""
    generator = torch.Generator().manual_seed(0)
    level = torch.randn(64, generator=generator, dtype=DOUBLE)
    noise = 0.05 * torch.randn(64, generator=generator, dtype=DOUBLE)
    history = [predicted(1, level), predicted(2, level - 0.1 + noise)]
    assert "predicted worse than in lap 1, by 0.09" in warnings(history, RECIPE)[0]
    assert warnings([predicted(1, level), predicted(2, level - 0.04 + noise)], RECIPE) == []  # too little to matter
    shuffled = level[torch.randperm(64, generator=generator)]
    assert warnings([predicted(1, level), predicted(2, shuffled - 0.1)], RECIPE) == []  # chance explains it


def test_the_best_lap_is_named():
    flat = torch.zeros(16, dtype=DOUBLE)
    wave = torch.linspace(-0.01, 0.01, 16, dtype=DOUBLE)
    history = [predicted(lap, flat + value + lap * wave) for lap, value in enumerate((0.0, 0.5, 0.3, 0.2))]
    assert "lap=1" in warnings(history, RECIPE)[0]


def test_the_significance_level_is_divided_among_laps():
    """The false alarms of all laps together stay below the level."""
    lap = LAP | {"expected_chi2": 1.0, "heldout_chi2_z": 3.3}
    assert warnings([{"lap": 1}, lap], load_recipe("digits", {"laps": 1}))
    assert not warnings([{"lap": 1}, lap], load_recipe("digits", {"laps": 100}))


def by_brightness(n: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.linspace(0.2, 2, n)[:, None] * torch.randn(n, 4, generator=generator)


@pytest.mark.parametrize("held_out", [0, 600])
def test_observations_sorted_by_size_are_compared_evenly(held_out):
    """The first of them are 3 times as small as samples of the right prior."""
    x = by_brightness(1500)
    obs = Observations(x, operators.Identity(), sigma=0.01)
    split = SplitObservations.of(obs, held_out, torch.device("cpu"))
    prior = priors.GaussianPrior(x.mean(0), x.T.cov())
    found = evaluate_lap(
        prior, split.held_out, split.preview, load_recipe("digits", {"watch.held_out": held_out})
    ).metrics
    assert found["observation_scale"] == pytest.approx(1, abs=0.15)
    assert torch.equal(split.preview.y[:8], obs[in_pictures(1500, held_out)].y)


def test_clean_data_sorted_by_size_are_compared_evenly(tmp_path):
    x = by_brightness(1500)
    np.save(tmp_path / "y.npy", x.reshape(-1, 2, 2).numpy())
    data = {"source": "file", "path": str(tmp_path / "y.npy"), "sigma": 0.1}
    changes = {
        "laps": 1,
        "train.steps": 1,
        "train.first_steps": 1,
        "watch.samples": 2,
        "watch.draws": 2,
        "data": data,
        "e_step.steps": 2,
    }
    diffem.fit(None, "small-images", tmp_path / "run", changes=changes, progress=False, report=False)
    found = evaluate(tmp_path / "run", str(tmp_path / "y.npy"), samples=128, draws=0, lap=0)
    assert found["sliced_wasserstein"] < 0.45  # 0.77 from the first ones
    assert found["observation_distance"] < 0.45


@pytest.mark.parametrize(("k", "reported"), [(2, True), (3, True), (4, False)])
def test_too_few_draws_for_a_predictive_log_likelihood_are_reported(k, reported):
    """Two or three draws: most runs are far above the exact value, which four to sixteen are not."""
    error, v, noise = 3.0, 1.0, 0.01  # a precise value, three standard deviations away
    generator = torch.Generator().manual_seed(0)
    draws = torch.randn(k, 100 * 100, generator=generator, dtype=DOUBLE) * math.sqrt(v)
    y = torch.full((100 * 100,), error, dtype=DOUBLE)
    runs = unbiased_log_density(y, draws, torch.full_like(y, noise**2)).reshape(100, 100).mean(1)
    exact = -0.5 * (error**2 / (v + noise**2) + math.log(2 * math.pi * (v + noise**2)))
    assert (float(runs.median()) - exact > 2) == reported
    obs = Observations(torch.randn(100, 8), operators.Identity(), sigma=0.1)
    recipe = load_recipe("digits", {"watch.draws": k})
    assert any("watch.draws is" in note for note in notes(recipe, obs)) == reported
