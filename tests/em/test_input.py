"""`diffem.fit` on arrays of any kind, and a whole run on float64 data."""

import numpy as np
import pytest
import torch

import diffem
from diffem import CastWarning, InputError, Observations, RunWarning, metrics, operators, priors
from diffem.em import input_checks
from diffem.em.evaluation import evaluate
from diffem.em.input_checks import data_warnings
from diffem.observations.lazy import LazyObservations, MemorySource
from diffem.observations.precision import in_float32, lossy
from diffem.priors.files import save_prior

from .small import RECIPE, observations
from .test_resume import contents, same

FEW = {**RECIPE, "laps": 2, "train": {**RECIPE["train"], "steps": 30}}


def table():
    """The small observations as float32 numbers with gaps."""
    obs = observations()
    return torch.where(obs.measured, obs.y, torch.nan).numpy()


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "single"
    diffem.fit(observations(), FEW, out, progress=False, report=False)
    return contents(out)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_array_with_gaps_is_learned_from_like_observations(dtype, single, tmp_path):
    """float64 holds the same numbers: the run computes in float32, states so, and gives the same bits."""
    run = diffem.fit(table().astype(dtype), FEW, tmp_path / "run", sigma=0.1, progress=False)
    assert same(contents(run.path), single)
    notes = [note for note in run.laps[0]["notes"] if "float64" in note]
    assert notes == (["the observations are float64; the run converts them to float32"] if dtype == np.float64 else [])
    again = diffem.fit(table().astype(dtype), FEW, tmp_path / "run", sigma=0.1, progress=False)
    assert again.path == run.path
    other = np.float64 if dtype == np.float32 else np.float32
    with pytest.raises(InputError, match="other observations"):
        diffem.fit(table().astype(other), FEW, tmp_path / "run", sigma=0.1, progress=False)


ONES, MIX = torch.ones(4, dtype=torch.float64), torch.eye(4) + 0.1  # constants of different dtypes
OPERATORS = {
    "dense": lambda: operators.Dense(torch.randn(136, 3, 4, dtype=torch.float64)),
    "function": lambda: operators.Function(
        lambda x, w: w * x.cumsum(-1), (4,), w=torch.rand(136, 4, dtype=torch.float64) + 0.5
    ),
    "closure": lambda: operators.Function(lambda x: ONES * x, (4,)),
    "float32": lambda: operators.Function(lambda x: x @ MIX, (4,)),  # matrix products do not mix dtypes
}


@pytest.mark.parametrize(
    ("kind", "rank"),
    [("dense", None), ("dense", 2), ("function", None), ("function", 2), ("closure", 2), ("float32", None)],
)
def test_a_whole_run_in_float64(kind, rank, tmp_path):
    """Start, draws, network, measures, report, posteriors and evaluation all work with this dtype."""
    A = OPERATORS[kind]()
    x = torch.randn(136, 4, dtype=torch.float64)
    obs = Observations(A(x) + 0.1 * torch.randn_like(A(x)), A, sigma=0.1)
    recipe = {**FEW, "gaussian": {"rounds": 4, "rank": rank}}
    run = diffem.fit(obs, recipe, tmp_path / "run", progress=False)
    for prior in (run.prior, run.load(0)):
        assert prior.mean.dtype == torch.float32
        draws = prior.posterior(obs[:8]).sample(draws=2, steps=4)  # without a warning: nothing is lost
        assert draws.dtype == torch.float32
        assert torch.isfinite(obs[:8].chi2(draws[0])).all()
    assert np.isfinite(metrics.observation_distance(run.prior.sample(136, steps=4), obs))
    assert np.isfinite(evaluate(run.path, draws=2, samples=8, steps=2)["heldout_chi2"])


def test_float64_is_converted_with_a_warning_only_where_rounding_matters(tmp_path):
    """The noise must be well above the spacing of float32 numbers: 3e-5 at 300."""
    prior = priors.GaussianPrior(torch.full((4,), 300.0), torch.eye(4))
    y = 300 + table().astype(np.float64)
    assert lossy(Observations(y, sigma="learn")) is None  # unknown
    prior.posterior(Observations(y, sigma=0.1)[:2])
    fine = Observations(y, sigma=1e-4)
    with pytest.warns(CastWarning, match="up to 0.18 standard deviations of their noise"):
        prior.posterior(fine[:2])
    with pytest.warns(RunWarning, match="up to 0.18 standard deviations"):
        diffem.fit(fine, FEW, tmp_path / "run", progress=False)


def test_gaussians_stay_in_float64():
    """Computations without a network keep their precision."""
    obs = Observations(table().astype(np.float64), sigma=0.1)
    prior = priors.fit_gaussian(obs, rounds=4, progress=False)
    assert prior.mean.dtype == torch.float64
    assert prior.posterior(obs[:3]).sample(steps=4).dtype == torch.float64


def test_observations_on_disk_are_converted_as_they_are_read():
    obs = Observations(table().astype(np.float64), sigma=0.1)
    stored = LazyObservations(MemorySource(obs), torch.arange(10, 60))
    cast = in_float32(stored)
    assert isinstance(cast, LazyObservations)
    assert cast[3:5].y.dtype == torch.float32
    assert torch.equal(cast[3:5].y, obs[13:15].y.float())
    assert torch.equal(cast.counts(), obs[10:60].counts())
    assert torch.equal(cast.operators()[torch.tensor([4])].measured(obs.y[:1]), obs[14].measured)
    single = observations()
    assert in_float32(single) is single


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda out: diffem.fit(table(), FEW, out), "needs the noise level: sigma=0.1,.* sigma='learn' to estimate it"),
        (lambda out: diffem.fit(observations(), FEW, out, sigma=0.1), "A and sigma need y alone: obs has"),
        (lambda out: diffem.fit(None, "digits", out, sigma=0.1), "the recipe's data source has"),
        (lambda out: diffem.fit("obs.safetensors", FEW, out, sigma=0.1), "Observations.load"),
        (lambda out: diffem.fit(table(), FEW, out, sigma=[1.0, 2.0]), "sigma must be one number or 136"),
        (
            lambda out: diffem.fit(np.where(np.isnan(table()), 1e20, table()), FEW, out, sigma=0.1),
            r"measured values up to 1e\+20.* fill values of missing data by NaN",
        ),
        (
            lambda out: diffem.fit(np.ones((40, 3)), FEW, out, A=operators.Dense(np.zeros((3, 4))), sigma=0.1),
            "A x is 0 for every x and every observation",
        ),
        (
            lambda out: diffem.fit(np.ones((40, 4)), FEW, out, A=operators.Function(lambda x: 0 * x, (4,)), sigma=0.1),
            "A x is 0 for every x and every observation",
        ),
        (lambda out: diffem.fit(observations(), FEW, out, device="cuda:99"), "device 'cuda:99' cannot be used here"),
        (lambda out: diffem.fit(observations(), FEW, out, device="gpu"), "device 'gpu' cannot be used here"),
        (
            lambda out: diffem.fit(np.full((40, 4), np.nan), FEW, out, sigma=0.1),
            "none of the training observations has a measured value",
        ),
        (
            lambda out: diffem.fit(
                observations(), FEW, out, start=priors.GaussianPrior(torch.zeros(4).double(), torch.eye(4).double())
            ),
            r"start.to\(torch.float32\)",
        ),
        (
            lambda out: diffem.fit(np.ones((40, 4)), FEW, out, sigma=1e-30),
            "below the smallest number that torch.float32 resolves .*: multiply y",  # y is float64 already
        ),
        (
            lambda out: diffem.fit(
                np.ones((40, 4)),
                FEW,
                out,
                A=operators.Function(lambda x: x @ MIX.double(), (4,)),
                sigma=0.1,
            ),
            r"networks compute in float32.*\.to\(x\)",
        ),
    ],
)
def test_misuse_is_reported_before_anything_is_written(call, words, tmp_path):
    with pytest.raises(InputError, match=f"(?s){words}"):
        call(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_operators_of_which_only_the_last_measures_something_are_used(monkeypatch):
    matrices = torch.zeros(40, 3, 4)
    matrices[-1] = 1
    monkeypatch.setattr("diffem.observations.batches.scanned_together", lambda obs: 7)
    input_checks.require_signal(Observations(torch.zeros(40, 3), operators.Dense(matrices), sigma=0.1))


def test_a_prior_is_not_loaded_on_a_device_that_is_not_there(tmp_path):
    save_prior(priors.GaussianPrior(torch.zeros(4), torch.eye(4)), tmp_path / "prior.safetensors")
    with pytest.raises(InputError, match=r"device 'cuda:99' cannot be used here: .*'cpu' always works"):
        diffem.load(tmp_path / "prior.safetensors", device="cuda:99")


IMAGES = {
    "laps": 1, "train.steps": 10, "train.first_steps": 10, "e_step.steps": 2, "gaussian.rounds": 2, "network.hidden": [8, 8],  # noqa: E501
    "watch.held_out": 8, "watch.samples": 8, "watch.draws": 2,
}  # fmt: skip


def pictures(*shape):
    """Images of which half of the pixels are missing, in all channels."""
    y = torch.randn(40, *shape)
    return torch.where(torch.rand(40, 1, *shape[1:]) < 0.5, y, torch.nan)


def test_colour_images_with_missing_pixels(tmp_path):
    """The recipe's conditional network takes whole pixels, and so held-out pixels are hidden in all channels."""
    run = diffem.fit(pictures(3, 4, 4), "small-images", tmp_path, sigma=0.1, changes=IMAGES, progress=False)
    assert "predictive_log_likelihood" in run.laps[-1]


def test_channels_along_the_last_axis_cause_a_warning(tmp_path):
    with pytest.warns(diffem.RunWarning, match=r"(?s)8 channels of 8×3 pixels.*samples of shape \(3, 8, 8\)"):
        diffem.fit(pictures(8, 8, 3), "small-images", tmp_path, sigma=0.1, changes=IMAGES, progress=False)


def test_columns_that_are_not_standardised_cause_a_warning():
    """A table in its own units, a column of which is empty; standardised and without that column there is nothing to
    warn of."""
    x = torch.randn(100, 3) * torch.tensor([10.0, 300.0, 1.0]) + torch.tensor([170.0, 5000.0, 0.0])
    y = torch.where(torch.rand(100, 3) < 0.8, x, torch.nan)
    y[:, 2] = torch.nan
    never, far, unequal = data_warnings(Observations(y, sigma=0.1), images=False)
    assert "no observation measures 1 of the 3 values of x (index 2)" in never
    assert "far from zero" in far
    assert "Standardise them" in unequal
    values = (y[:, :2] - y[:, :2].nanmean(0)) / x[:, :2].std(0)
    assert data_warnings(Observations(values, sigma=0.1), images=False) == []
    assert data_warnings(observations(), images=False) == []


def test_the_recipe_of_the_digits_for_other_samples_causes_a_warning(tmp_path):
    obs, bad = Observations(torch.randn(100, 6), sigma=0.1), {"network.kind": "none"}
    with pytest.warns(RunWarning, match=r"made for the digits.*\(6,\) use"), pytest.raises(InputError, match="none"):
        diffem.fit(obs, out=tmp_path / "run", changes=bad, progress=False)


def test_very_few_observations_cause_a_warning():
    """A single image, or an array whose first axis does not count observations."""
    x = torch.randn(16, 8, 8)
    assert data_warnings(Observations(x, sigma=0.1), images=True) == []
    (text,) = data_warnings(Observations(x[:15], sigma=0.1), images=True)
    assert "y holds 15 observations of samples of shape (8, 8)" in text
    assert "y holds 1 observation of" in data_warnings(Observations(x[:1], sigma=0.1), images=True)[0]


def test_the_moments_of_measured_values_do_not_depend_on_the_parts(monkeypatch):
    y = torch.where(torch.rand(50, 2, 3) < 0.5, 1e4 + torch.randn(50, 2, 3, dtype=torch.float64), torch.nan)
    obs = Observations(y, sigma=0.1)
    monkeypatch.setattr(input_checks, "NUMBERS", 6 * 7)
    count, mean, std = input_checks.entry_moments(obs)
    assert torch.equal(count, (~y.isnan()).sum(0).double())
    torch.testing.assert_close(mean, y.nanmean(0))
    torch.testing.assert_close(std, (y - y.nanmean(0)).square().nanmean(0).sqrt(), rtol=1e-9, atol=0)
