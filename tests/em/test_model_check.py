"""The check of the stated model at the start of a run: exact laws, faults that are named, and silence about the right
model."""

import math

import pytest
import torch

import diffem
from diffem import Observations, operators, priors
from diffem.em import model_check
from diffem.em.model_check import check_model
from diffem.em.model_check.masks import mask_evidence
from diffem.em.model_check.noise import Gain, NoiseEvidence, log_evidence
from diffem.em.model_check.pairing import UnseenObservations, pairing_evidence
from diffem.metrics import Estimate
from diffem.priors import marginal
from diffem.priors.marginal import choose, measured_values, observation_laws
from diffem.runs.recipe import load_recipe

from ..exact import matrix_of, random_covariance
from ..operators.registry import REGISTRY
from .small import RECIPE as SMALL
from .small import observations as small_observations

DOUBLE = torch.float64
RECIPE = load_recipe({"name": "check", "data": {"source": "given"}, "laps": 1, "train": {"steps": 1}})
SIGMA, N = 0.3, 512


def operator(kind, n, generator):
    if kind == "masks":
        return 8, operators.Mask(torch.rand(n, 8, generator=generator) < 0.6)
    if kind == "blur":
        width = 0.4 + 1.6 * torch.rand(n, 1, 1, generator=generator, dtype=DOUBLE)
        kernel = torch.exp(-0.5 * (torch.arange(-2, 3, dtype=DOUBLE) / width).square())
        return 12, operators.Blur(kernel / kernel.sum(-1, keepdim=True))
    rows = {"dense": 5, "one value": 1}[kind]
    return 8, operators.Dense(torch.randn(n, rows, 8, generator=generator, dtype=DOUBLE) / math.sqrt(8))


def problem(kind, n=N, seed=0):
    """y, A and the prior that x was drawn from."""
    generator = torch.Generator().manual_seed(seed)
    size, A = operator(kind, n, generator)
    shape = (1, size) if kind == "blur" else (size,)
    place = torch.arange(size, dtype=DOUBLE)
    prior = priors.GaussianPrior(
        torch.linspace(-0.5, 0.5, size, dtype=DOUBLE).reshape(shape), torch.exp(-(place[:, None] - place).abs() / 3)
    )
    y = A(prior.exact_sample(torch.randn(n, *shape, dtype=DOUBLE, generator=generator)))
    return y + SIGMA * torch.randn(y.shape, dtype=DOUBLE, generator=generator), A, prior


def check(obs):
    return check_model(priors.fit_gaussian(obs[:100], rounds=2), obs, None, RECIPE)


# laws -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REGISTRY)
def test_the_law_of_an_observation(name):
    """log N(y; Aμ, AΣAᵀ + Σ_y) over the measured values, against the operator's matrix; whole, and over a window of the
    values."""
    make, shape = REGISTRY[name]
    n, size = 3, math.prod(shape)
    A, generator = make(n), torch.Generator().manual_seed(0)
    prior = priors.GaussianPrior(torch.randn(shape, dtype=DOUBLE, generator=generator), random_covariance(size))
    x = prior.exact_sample(torch.randn(n, *shape, dtype=DOUBLE, generator=generator))
    obs = Observations(A(x), A, sigma=0.4)
    matrix, cov, whole = matrix_of(A, shape, n), prior.covariance().matrix()[0], measured_values(obs)
    for inside, got in ((whole, log_evidence(prior, obs)), window(prior, obs, whole, 4)):
        for i in range(n):
            rows, y = matrix[i][inside[i]], obs.y[i].flatten()[inside[i]]
            K = rows @ cov @ rows.T + 0.16 * torch.eye(len(rows), dtype=DOUBLE)
            law = torch.distributions.MultivariateNormal(rows @ prior.mean.flatten(), K)
            assert float(got[i]) == pytest.approx(float(law.log_prob(y)), rel=1e-9)


def window(prior, obs, measured, most):
    """Which values `choose` takes, and the log density of those."""
    chosen = choose(measured, most)
    inside = torch.zeros_like(measured).scatter(1, chosen.index, chosen.inside) & measured
    assert (inside.sum(1) == measured.sum(1).clamp(max=most)).all()
    return inside, torch.cat([law.log_prob() for _, law in observation_laws(prior, obs, chosen)])


def test_the_evidence_does_not_depend_on_the_parts(monkeypatch):
    y, A, prior = problem("dense", n=20)
    obs = Observations(y, A, sigma=SIGMA)
    whole = log_evidence(prior, obs)
    monkeypatch.setattr(marginal, "NUMBERS", 150)  # three observations at a time
    assert torch.allclose(log_evidence(prior, obs), whole, rtol=1e-12)
    monkeypatch.setattr(marginal, "CPU_NUMBERS", 1)  # AΣAᵀ of one observation at a time
    assert torch.allclose(log_evidence(prior, obs), whole, rtol=1e-12)


# the right model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["masks", "dense", "blur", "one value"])
def test_the_right_model_is_not_flagged(kind):
    y, A, _ = problem(kind)
    found = check(Observations(y, A, sigma=SIGMA))
    assert found.warnings == []
    # 512 ranks with a standard deviation of at most ½ each, in the observed and in the simulated ones
    metrics = found.metrics
    assert metrics["pairing"] == pytest.approx(metrics["pairing_expected"], abs=4 * 0.5 * math.sqrt(2 / N))
    assert metrics["pairing"] > {"masks": 0.49, "dense": 0.8, "blur": 0.6, "one value": 0.55}[kind]


def test_x_need_not_be_gaussian():
    """Heavy tails, and a curve: only means and covariances are compared."""
    generator = torch.Generator().manual_seed(0)
    _, A, _ = problem("dense")
    scale = torch.randn(N, 1, generator=generator, dtype=DOUBLE).exp()
    x = scale * torch.randn(N, 8, generator=generator, dtype=DOUBLE)
    y = A(x) + SIGMA * torch.randn(N, 5, generator=generator, dtype=DOUBLE)
    assert check(Observations(y, A, sigma=SIGMA)).warnings == []
    assert check(small_observations(400)).warnings == []


def test_a_gaussian_that_is_too_wide_does_not_suspect_the_operators():
    """It prefers the widest blur for every y."""
    y, A, prior = problem("blur", n=256)
    wrong = priors.GaussianPrior(prior.mean, prior.covariance().scaled(8.0))
    obs = Observations(y, A, sigma=SIGMA)
    low_rank = load_recipe(RECIPE, {"gaussian.rank": 2})  # the noise is not checked
    found = check_model(wrong, obs[:128], obs[128:], low_rank)
    assert found.warnings == []
    shuffled = Observations(y[128:], A[128 + torch.arange(128).roll(7)], sigma=SIGMA)
    assert "do not belong together" in check_model(wrong, obs[:128], shuffled, low_rank).warnings[0]


# faults ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dense", "blur"])
@pytest.mark.parametrize(("factor", "words"), [(2.0, "too large: with half"), (0.5, "too small: with twice")])
def test_a_wrong_noise_level_is_reported(kind, factor, words):
    y, A, _ = problem(kind)
    (warning,) = check(Observations(y, A, sigma=factor * SIGMA)).warnings
    assert words in warning


@pytest.mark.parametrize("kind", ["dense", "blur"])
def test_shuffled_operators_are_reported(kind):
    y, A, _ = problem(kind)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    found = check(Observations(y, A[order], sigma=SIGMA))
    (warning,) = found.warnings
    assert "do not belong together" in warning
    # ½ by chance, with 512 ranks of a standard deviation of ½ at most
    assert found.metrics["pairing"] == pytest.approx(0.5, abs=4 * 0.5 / math.sqrt(N))


def test_masks_of_other_observations_are_reported():
    """What was not measured is 0 in y."""
    y, A, _ = problem("masks")
    seen = Observations(y, A, sigma=SIGMA).y
    (warning,) = check(Observations(seen, A[torch.arange(N).roll(7)], sigma=SIGMA)).warnings
    assert "exactly 0" in warning


@pytest.mark.parametrize(("filled", "step"), [("zeros", 1), ("noise", -1)])
def test_shifted_masks_are_reported(filled, step):
    """Entries that were not measured contain zeros or noise; in both cases their size reveals that."""
    y, A, _ = problem("masks")
    noise = SIGMA * torch.randn(y.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    seen = A(y) + (noise if filled == "noise" else 0)
    shifted = Observations(seen, operators.Mask(A._tensors["mask"].roll(step, -1)), sigma=SIGMA)
    (warning,) = check(shifted).warnings
    assert f"(axis -1, {step:+d})" in warning
    assert "shifted by one entry" in warning


@pytest.mark.parametrize("value", [0.0, -999.0, 0.123456789])
def test_constants_in_place_of_missing_values_are_reported(value):
    """Without a mask, too; values of rounded data are not much more frequent than the others."""
    y, A, _ = problem("masks")
    seen = y.where(A._tensors["mask"], value)
    found = [w for w in check(Observations(seen, sigma=SIGMA)).warnings if f"exactly {value:.6g}," in w]
    assert len(found) == 1
    assert "must be NaN" in found[0]
    assert check(Observations((y / 0.2).round() * 0.2, sigma=SIGMA)).warnings == []


@pytest.mark.parametrize("background", [-2.0, 0.0])
def test_a_few_clean_samples_may_repeat_values(background):
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(300, 8, generator=generator, dtype=DOUBLE).clamp(min=0.5) - 0.5 + background
    clean = Observations(x[:40], sigma=0.05)
    y = x + 0.1 * torch.randn(x.shape, generator=generator, dtype=DOUBLE)
    mask = torch.rand(300, 8, generator=generator) < 0.5
    obs = Observations.concatenate([clean, Observations(y[40:], operators.Mask(mask[40:]), sigma=0.1)])
    evidence = mask_evidence(obs)
    assert evidence.filled is None
    assert mask_evidence(clean).filled == background  # many samples: these have no noise


def test_masks_detect_a_stated_level_that_is_too_large_only_for_data_near_a_curve():
    """Values on a curve have a singular covariance; with a full covariance, less noise than stated always fits."""
    obs = small_observations(400)
    wrong = check(Observations(obs.y, obs.A, sigma=0.2))
    assert "too large" in wrong.warnings[0]
    y, A, _ = problem("masks")
    for factor in (0.5, 2.0):
        found = check(Observations(y, A, sigma=factor * SIGMA))
        assert found.warnings == []
        assert any("cannot distinguish the stated noise level" in note for note in found.notes)


def test_more_and_less_noise_cannot_both_be_right():
    better = Gain(fitted=1e3, unseen=Estimate(1.0, 0.01), values=100)
    found = model_check.ModelCheck()
    model_check._check_noise(NoiseEvidence({0.5: better, 2.0: better}, [], False), found)
    assert found.warnings == []
    assert "half or twice" in found.notes[0]


# what is not checked --------------------------------------------------------------------------------------------------


def test_a_note_names_checks_that_were_not_made():
    y, A, prior = problem("dense", n=200)
    obs, held_out = Observations(y, A, sigma=SIGMA)[:136], Observations(y, A, sigma=SIGMA)[136:]
    mixture = priors.MixturePrior(torch.ones(2), torch.zeros(2, 8, dtype=DOUBLE), torch.ones(2, dtype=DOUBLE))
    given = check_model(mixture, obs, held_out, RECIPE)
    assert given.warnings == []
    assert "this run starts from another prior" in given.notes[0]
    low_rank = load_recipe(RECIPE, {"gaussian.rank": 2})
    notes = check_model(prior, obs, None, low_rank).notes
    assert any("gaussian.rank" in note for note in notes)
    assert any("watch.held_out is 0" in note for note in notes)
    shuffled = Observations(held_out.y, held_out.A[torch.arange(64).roll(7)], sigma=SIGMA)
    assert "do not belong together" in check_model(prior, obs, shuffled, low_rank).warnings[0]
    clean = load_recipe(RECIPE, {"e_step.clean": True})
    assert check_model(prior, obs, None, clean) == model_check.ModelCheck()


def test_a_shared_operator_needs_no_check_of_the_order():
    prior = priors.GaussianPrior(torch.zeros(3), torch.eye(3))
    obs = Observations(torch.zeros(8, 2), operators.Dense(torch.ones(2, 3)), sigma=0.1)
    assert pairing_evidence([UnseenObservations(prior, obs, prior)]) is None


def test_observations_that_measure_nothing_do_not_count():
    y, A, _ = problem("masks")
    mask = A._tensors["mask"].clone()
    mask[::3] = False
    found = check(Observations(y, operators.Mask(mask), sigma=SIGMA))
    rest = Observations(y, operators.Mask(mask), sigma=SIGMA).informative()
    assert found.warnings == []
    every, some = mask_evidence(Observations(y, operators.Mask(mask), sigma=SIGMA)), mask_evidence(rest)
    assert every.neighbours == pytest.approx(some.neighbours, rel=1e-12)
    nothing = Observations(y, operators.Mask(torch.zeros_like(mask)), sigma=SIGMA)
    prior = priors.GaussianPrior(torch.zeros(8, dtype=DOUBLE), torch.eye(8, dtype=DOUBLE))
    assert check_model(prior, nothing, None, RECIPE) == model_check.ModelCheck()


def test_only_the_checked_observations_are_read(monkeypatch):
    """The check reads a fixed number of observations once, for any number of observations."""
    y, A, prior = problem("dense", n=300)
    obs, read = Observations(y, A, sigma=SIGMA), []
    monkeypatch.setattr(model_check, "CHECKED", 120)

    class Counted(Observations):
        def __getitem__(self, index):
            part = obs[index]
            read.append(len(part))
            return part

    check_model(prior, Counted(y, A, sigma=SIGMA), None, RECIPE)
    assert read == [120]


@pytest.mark.parametrize("kind", ["masks", "dense"])
def test_units_do_not_matter(kind):
    """Data in other units give the same answer; likelihoods differ by the logarithm of the scale, which cancels but for
    rounding."""
    y, A, prior = problem(kind, n=160)
    obs = Observations(y, A, sigma=2 * SIGMA)
    scaled = priors.GaussianPrior(prior.mean * 2.0**20, prior.covariance().scaled(2.0**20))
    found, expected = check_model(scaled, obs.scaled(2.0**20), None, RECIPE), check_model(prior, obs, None, RECIPE)
    assert (found.warnings, found.notes) == (expected.warnings, expected.notes)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-9)


def test_a_run_records_the_result_of_the_model_check(tmp_path):
    """With as many rounds of the Gaussian fit as the check takes."""
    obs = small_observations(200)
    wrong = Observations(obs.y, obs.A, sigma=0.3)
    changes = {"laps": 1, "gaussian.rounds": 32, "train.steps": 20}
    run = diffem.fit(wrong, SMALL, tmp_path / "run", changes=changes, progress=False)
    start = run.laps[0]
    assert any("too large" in warning for warning in start["warnings"])
    assert start["noise_half_gain"] > 4 * start["noise_half_error"]
    assert "exactly 0" not in " ".join(start["warnings"])
