"""Every cause is recognised by its numbers and named with the key to change; a healthy run is silent."""

import math

import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.em.denoising import denoising_losses, denoising_measures, loss_fall, noise_levels
from diffem.em.diagnosis import notes, warnings
from diffem.em.noise_law import noise_law
from diffem.em.screening import screen
from diffem.em.verdict import verdict
from diffem.runs.draws import DrawStore
from diffem.runs.recipe import Noise, load_recipe

from ..exact import random_covariance
from .small import CONDITIONAL, RECIPE

DIGITS = load_recipe("digits")
HEALTHY = {
    "lap": 2,
    "rejected": 0.01,
    "outside": 0.01,
    "misfit": 0.0,
    "not_finite": 0.0,
    "stuck": 0.0,
    "bound": 4.0,
    "trained_loss": 0.64,
    "gaussian_loss": 0.68,
    "unseen_loss": 0.67,
    "unseen_loss_error": 0.01,
    "loss_fall": 0.01,
    "observation_scale": 1.02,
    "observation_scale_z": 0.5,
    "hidden_coverage90": 0.9,
    "hidden_coverage90_error": 0.02,
    "hidden_spread": 1.0,
    "hidden_spread_z": 0.0,
    "heldout_chi2": 1.0,
    "expected_chi2": 1.0,
    "heldout_chi2_z": 0.0,
}


def found(recipe=DIGITS, **changes):
    return warnings([{"lap": 1, "gaussian_loss": 0.65}, HEALTHY | changes], recipe)


def test_a_healthy_lap_is_silent():
    assert found() == []


def test_draws_beyond_the_bound_in_every_attempt_are_attributed_to_the_bound():
    (text,) = found(rejected=0.2, outside=0.2, stuck=0.15)
    assert "±4" in text
    assert "e_step.bound: 3.7 is too small" in text
    (text,) = found(load_recipe("digits", {"e_step.bound": None}), rejected=0.2, outside=0.2, stuck=0.15)
    assert "set e_step.bound" in text


def test_draws_that_another_attempt_replaces_are_attributed_to_the_network():
    (text,) = found(rejected=0.2, outside=0.2, stuck=0.002)
    assert "far larger than the data" in text
    assert "train.steps" in text
    assert "e_step.bound" not in text


def test_failures_in_every_attempt_of_a_bad_network_are_not_attributed_to_the_bound():
    """The Gaussian start drew within it."""
    history = [
        {"lap": 1, "gaussian_loss": 0.65, "stuck": 0.0},
        HEALTHY | {"rejected": 0.5, "outside": 0.5, "stuck": 0.4},
    ]
    (text,) = warnings(history, DIGITS)
    assert "far larger than the data" in text
    assert "e_step.bound" not in text


@pytest.mark.parametrize(
    ("cause", "key"),
    [({"misfit": 0.2}, "e_step.iterations"), ({"not_finite": 0.2}, "train.lr"), ({}, "e_step.plausible")],
)
def test_a_warning_names_the_cause_of_rejected_draws(cause, key):
    (text,) = found(rejected=0.2, outside=0.0, **cause)
    assert key in text


def test_a_flat_loss_above_that_of_the_start_means_a_network_too_small():
    (text,) = found(trained_loss=0.95, unseen_loss=0.96)
    assert "too small; raise network.hidden" in text
    (text,) = found(trained_loss=0.95, unseen_loss=0.96, loss_fall=0.1)
    assert "still falling: the network is trained too little; raise train.steps" in text
    assert found(trained_loss=0.7, unseen_loss=0.7) == []


def test_specific_advice_replaces_general_advice():
    """Draws that are rejected and predictions that get worse follow from a network that is too small."""
    wave = torch.linspace(-0.01, 0.01, 16).tolist()
    before = {"lap": 1, "gaussian_loss": 0.65, "predictive_log_likelihood": 0.0, "predictive_each": [0.0] * 16}
    lap = HEALTHY | {"predictive_log_likelihood": -0.5, "predictive_each": [w - 0.5 for w in wave]}
    (alone,) = warnings([before, lap], DIGITS)
    assert "the prior drifts" in alone
    small, worse = warnings([before, lap | {"trained_loss": 0.95, "unseen_loss": 0.96}], DIGITS)
    assert "drifts" not in worse
    assert "lap=1" in worse
    assert "network.hidden" in small


def test_a_loss_that_is_low_only_on_training_draws_is_overfitting():
    (text,) = found(trained_loss=0.2, unseen_loss=1.4, unseen_loss_error=0.07)
    assert "overfits its training draws" in text
    assert "e_step.draws" in text
    assert found(trained_loss=0.2, unseen_loss=1.4, unseen_loss_error=0.5) == []  # chance explains it
    assert found(trained_loss=0.64, unseen_loss=0.7, unseen_loss_error=0.001) == []  # too little to matter


def test_samples_of_another_size_than_the_data():
    (text,) = found(observation_scale=30.0, observation_scale_z=40.0)
    assert "30 times as large" in text
    assert "e_step.bound" in text
    assert found(observation_scale=3.0, observation_scale_z=2.0) == []
    (text,) = warnings([{"lap": 0, "start": "given", "observation_scale": 0.01, "observation_scale_z": -99.0}], DIGITS)
    assert "other units" in text
    assert "start: gaussian" in text
    (text,) = warnings([{"lap": 0, "observation_scale": 200.0, "observation_scale_z": 99.0}], DIGITS)
    assert "the Gaussian start is not on the scale of the data: raise gaussian.rounds" in text


ALONE = {
    **CONDITIONAL,
    "stages": [{"lap": 2, "train": {"steps": 48, "conditioned": 0, "measured": 0}}],
}


def test_a_lap_that_trains_the_prior_alone_is_no_drift():
    recipe = load_recipe(ALONE)
    wave = torch.linspace(-0.01, 0.01, 16).tolist()
    lap = {"lap": 2, "predictive_log_likelihood": -0.5, "predictive_each": [w - 0.5 for w in wave], "conditioned": 0}
    lap |= {"hidden_coverage90": 0.5, "hidden_coverage90_error": 0.01}
    history = [{"lap": k, "predictive_log_likelihood": 0.0, "predictive_each": [0.0] * 16} for k in (0, 1)]
    assert warnings([*history, lap], recipe) == []
    assert "trained the prior alone" in notes(lap, recipe)[0]
    assert "posteriors with lap 1" in notes(lap, recipe)[0]
    assert notes(history[1], recipe) == []
    assert warnings([*history, lap], load_recipe(CONDITIONAL)) != []
    told = verdict([*history, lap])
    assert told.worse
    assert "use lap 2 for prior samples and lap 1 for posterior draws" in told.text


# what is measured -----------------------------------------------------------------------------------------------------


def test_draws_are_screened_by_cause():
    obs = Observations(torch.zeros(5, 2), operators.Identity(), sigma=1.0)
    x = torch.tensor([[0.0, 0], [9, 0], [2, 2], [math.nan, 0], [2, -2]])
    screened = screen(x, obs, threshold=30.0, bound=3.0)
    assert screened.finite.tolist() == [True, True, True, False, True]
    assert screened.misfit.tolist() == [False, True, False, False, False]
    assert screened.only_outside.tolist() == [False] * 5
    outside = screen(x, obs, threshold=100.0, bound=3.0)
    assert outside.only_outside.tolist() == [False, True, False, False, False]


def test_the_loss_of_the_exact_denoiser_is_the_posterior_variance():
    """Of x ~ N(0, v) at unit scale, E ℓ = (1/σ² + 1) vσ²/(v + σ²) per entry."""
    n, v = 20_000, 0.5
    x = math.sqrt(v) * torch.randn(n, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    prior = priors.GaussianPrior(torch.zeros(2, dtype=torch.float64), v * torch.eye(2, dtype=torch.float64))
    levels = torch.tensor([0.3, 2.0])
    losses = denoising_losses(prior, x, levels)
    s = prior.scale
    expected = ((s**2 / levels**2 + 1) * v * levels**2 / (v + levels**2)).mean() / s**2
    assert float(losses.mean()) == pytest.approx(float(expected), rel=4 / math.sqrt(n))
    assert torch.equal(denoising_losses(prior, x[:50], levels, batch_size=7), denoising_losses(prior, x[:50], levels))


def test_levels_are_quantiles_of_the_law():
    levels = noise_levels(noise_law(Noise(), 0.01, 100.0), 7).log()
    assert float(levels[3]) == pytest.approx(0, abs=0.1)  # Beta(3, 3) is symmetric on the logarithm
    assert (levels.diff() > 0).all()


def test_the_relative_decrease_of_a_loss():
    assert loss_fall([4.0, 3.0, 2.0, 1.0]) == 0.5
    assert loss_fall([1.0] * 40) == 0
    assert loss_fall([1.0, 0.5]) is None


def test_the_exact_denoiser_is_no_better_on_draws_it_was_fitted_to(tmp_path):
    """Losses on two sets from the same distribution differ by chance only."""
    cov = random_covariance(6, seed=1).float()
    z = torch.randn(300, 6, generator=torch.Generator().manual_seed(0))
    gaussian = priors.GaussianPrior(torch.zeros(6), cov)
    x = gaussian.exact_sample(z)
    store = DrawStore(tmp_path / "draws", 200, 64)
    for k in range(len(store)):
        first, end = store.range(k)
        store.write(k, x[None, first:end], {})

    class Exact(priors.DiffusionPrior):
        def denoise(self, x_t, sigma):
            return gaussian.denoise(x_t, sigma)

    network = diffem.nn.MLP((6,), (4,), 4)
    exact = Exact(network, cov=gaussian.covariance(), scale=gaussian.scale, sigma_min=0.02, sigma_max=20.0)
    measures = denoising_measures(exact, store, x[200:], Noise(), [1.0] * 8)
    assert measures["trained_loss"] == pytest.approx(measures["gaussian_loss"], rel=1e-5)
    assert abs(measures["unseen_loss"] - measures["trained_loss"]) < 4 * measures["unseen_loss_error"]
    assert measures["loss_fall"] == 0


# small runs -----------------------------------------------------------------------------------------------------------


def plane(n, sigma=0.1, seed=0, scale=1.0):
    """Points near a plane in 12 dimensions, a quarter of their entries missing."""
    generator = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(12, 2, generator=generator))[0]
    x = torch.randn(n, 2, generator=generator) @ basis.T * math.sqrt(6) + 0.05 * torch.randn(n, 12, generator=generator)
    mask = torch.rand(n, 12, generator=generator) < 0.75
    y = x + sigma * torch.randn(n, 12, generator=generator)
    return Observations(scale * y, operators.Mask(mask), sigma=scale * sigma)


def fit(obs, out, start=None, **changes):
    settings = {
        "laps": 1,
        "network.dropout": 0.0,
        "network.hidden": [48, 48],
        "e_step.shard": 1000,
        "e_step.fresh": 1.0,
    }
    settings |= {"train.batch": 32, "train.steps": 2000, "watch.held_out": 48} | changes
    return diffem.fit(obs, RECIPE, out, changes=settings, progress=False, report=False, start=start).laps


def test_a_healthy_run_is_silent(tmp_path):
    laps = fit(plane(600), tmp_path / "run")
    assert [lap["warnings"] for lap in laps] == [[], []]
    assert laps[1]["trained_loss"] < 1.1 * laps[1]["gaussian_loss"]


def test_a_network_too_small_is_reported(tmp_path):
    text = " ".join(fit(plane(600), tmp_path / "run", **{"network.hidden": [1]})[1]["warnings"])
    assert "too small; raise network.hidden" in text


def test_a_training_too_short_is_reported(tmp_path):
    text = " ".join(fit(plane(600), tmp_path / "run", **{"train.steps": 40})[1]["warnings"])
    assert "trained too little; raise train.first_steps" in text


def test_overfitting_is_reported(tmp_path):
    changes = {"network.hidden": [128, 128], "watch.held_out": 44}
    text = " ".join(fit(plane(64), tmp_path / "run", **changes)[1]["warnings"])
    assert "overfits its training draws" in text


def test_a_bound_too_small_is_reported(tmp_path):
    laps = fit(plane(200), tmp_path / "run", **{"e_step.bound": 1.2, "train.steps": 8})
    assert any("e_step.bound: 1.2 is too small" in text for text in laps[1]["warnings"])
    assert laps[1]["rejected"] >= laps[1]["outside"] >= laps[1]["stuck"] > 0.01


def test_a_start_in_other_units_is_reported(tmp_path):
    cov = 1e-4 * torch.eye(12)
    laps = fit(plane(200), tmp_path / "run", priors.GaussianPrior(torch.zeros(12), cov), **{"train.steps": 8})
    assert any("learned in other units" in text for text in laps[0]["warnings"])


def test_noise_larger_than_the_data_is_reported(tmp_path):
    obs = plane(200)
    stated = Observations(obs.y, obs.A, sigma=25.0)
    laps = fit(stated, tmp_path / "run", **{"train.steps": 8})
    assert [text for text in laps[0]["warnings"] if "larger than the variation of the observations" in text]
    assert len(laps[0]["warnings"]) == 1  # and not that half of it fits better


def test_noise_below_the_rounding_is_reported(tmp_path):
    generator = torch.Generator().manual_seed(0)
    y = (40 * torch.randn(200, 4, generator=generator)).round()
    laps = fit(Observations(y, operators.Identity(), sigma=0.05), tmp_path / "run", **{"train.steps": 8})
    assert any("rounded to multiples of 1" in text for text in laps[0]["warnings"])
    fine = fit(Observations(y, operators.Identity(), sigma=1.0), tmp_path / "fine", **{"train.steps": 8})
    assert not any("rounded" in text for text in fine[0]["warnings"])


def test_columns_of_very_different_size_are_reported(tmp_path):
    generator = torch.Generator().manual_seed(0)
    size = torch.tensor([1000.0, 300, 2, 0.1])
    y = size * torch.randn(200, 4, generator=generator)
    laps = fit(Observations(y, operators.Identity(), sigma=0.1 * size), tmp_path / "run", **{"train.steps": 8})
    (text,) = [t for t in laps[0]["warnings"] if "standardise" in t]
    assert "2 of 4 columns (counted from 0: 2, 3)" in text
    even = fit(Observations(y / size, operators.Identity(), sigma=0.1), tmp_path / "even", **{"train.steps": 8})
    assert even[0]["warnings"] == []


def test_a_last_lap_that_trained_the_prior_alone_is_described_as_such(tmp_path, capsys):
    run = diffem.fit(plane(136), ALONE, tmp_path / "run")
    assert not any("drifts" in text or "train longer" in text for text in run.laps[2]["warnings"])
    assert "lap 2 trained the prior alone" in capsys.readouterr().out
    assert "Note: lap 2 trained the prior alone" in (tmp_path / "run/report.html").read_text()
