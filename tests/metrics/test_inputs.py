"""Metrics reject what torch would broadcast or compare without an error."""

import pytest
import torch

from diffem import Observations, metrics, operators, priors
from diffem.core.errors import InputError

K, N, D = 8, 6, 5
GENERATOR = torch.Generator().manual_seed(0)
DRAWS, TRUTH = torch.randn(K, N, D, generator=GENERATOR), torch.randn(N, D, generator=GENERATOR)
HALF = torch.arange(N * D).reshape(N, D) % 2 == 0
OBS = Observations(TRUTH, operators.Mask(HALF), sigma=0.1)


@pytest.mark.parametrize("metric", [metrics.coverage, metrics.crps, metrics.ranks])
@pytest.mark.parametrize(
    ("draws", "truth"),
    [
        (DRAWS, TRUTH[0]),
        (DRAWS, TRUTH[:1]),
        (DRAWS, TRUTH[:, :1]),
        (DRAWS, DRAWS),
        (TRUTH, TRUTH),
        (DRAWS[:0], TRUTH),
        (DRAWS[:, :0], TRUTH[:0]),
        (DRAWS, TRUTH.where(TRUTH > 0, torch.nan)),
        (DRAWS.where(DRAWS > 0, torch.nan), TRUTH),
        (DRAWS.long(), TRUTH.long()),
        (DRAWS.numpy(), TRUTH.numpy()),
    ],
)
def test_draws_must_fit_the_truth(metric, draws, truth):
    with pytest.raises(InputError, match="draws"):
        metric(draws, truth)


@pytest.mark.parametrize("metric", [metrics.mse, metrics.psnr])
@pytest.mark.parametrize("truth", [TRUTH[0], TRUTH[:1], DRAWS])
def test_errors_compare_tensors_of_one_shape(metric, truth):
    with pytest.raises(InputError, match="of one shape"):
        metric(TRUTH, truth)


@pytest.mark.parametrize("metric", [metrics.mse, metrics.psnr])
@pytest.mark.parametrize("values", [torch.complex(TRUTH, TRUTH), TRUTH.mul(100).to(torch.uint8)])
def test_errors_of_complex_numbers_and_integers_are_refused(metric, values):
    with pytest.raises(InputError, match="floating point"):  # the square of a complex number is not that of its size
        metric(values, values)


def test_errors_on_unmeasured_entries_need_the_samples_of_the_observations():
    with pytest.raises(InputError, match=r"one sample per observation, \(6, 5\)"):
        metrics.mse_unmeasured(TRUTH[:3], TRUTH[:3], OBS)
    with pytest.raises(InputError, match="data_range"):
        metrics.psnr(TRUTH, TRUTH, data_range=-1)


@pytest.mark.parametrize("distance", [metrics.sinkhorn, metrics.sliced_wasserstein, metrics.frechet])
def test_distances_reject_numbers_they_cannot_compare(distance):
    for x, y, words in (
        (TRUTH, torch.nan * TRUTH, "finite"),
        (TRUTH[:, 0], TRUTH[:, 0], r"\(n, \*event\)"),
        (TRUTH, TRUTH.long(), "floating-point"),
    ):
        with pytest.raises(InputError, match=words):
            distance(x, y)
    shifted = TRUTH.double() + 1e-9  # lost in float32
    assert distance(TRUTH, shifted) == distance(TRUTH.double(), shifted)


@pytest.mark.parametrize("reg", [0.0, -1.0, float("nan")])
def test_a_regularisation_that_would_never_be_reached(reg):
    with pytest.raises(InputError, match="regularisation must be positive"):
        metrics.sinkhorn(TRUTH, TRUTH, reg=reg)


def test_hidden_values_must_have_been_measured():
    everything = torch.ones(N, D, dtype=torch.bool)
    for measure in (metrics.predictive_log_likelihood, metrics.hidden_coverage):
        for draws, hidden, words in (
            (DRAWS, everything, "were not measured"),
            (DRAWS, HALF[:1], "mask for 6 observations"),
            (DRAWS, HALF.float(), "boolean mask"),
            (DRAWS[0], HALF, r"draws \(k, n, \*event\)"),
            (DRAWS[:, :3], HALF, r"draws \(k, n, \*event\)"),
        ):
            with pytest.raises(InputError, match=words):
                measure(draws, OBS, hidden)
    gaussian = priors.GaussianPrior(torch.zeros(D), torch.eye(D))
    with pytest.raises(InputError, match="were not measured"):
        metrics.exact_predictive_log_likelihood(gaussian, OBS, everything)
    other = priors.MixturePrior(torch.ones(1), torch.zeros(1, D), torch.ones(1))
    with pytest.raises(InputError, match="GaussianPrior, got MixturePrior"):
        metrics.exact_predictive_log_likelihood(other, OBS, HALF)  # type: ignore[arg-type]
    for fraction in (-0.1, 1.5, float("nan"), "half"):
        with pytest.raises(InputError, match="fraction of hidden values"):
            metrics.hide(OBS, fraction)  # type: ignore[arg-type]


def test_one_sample_per_observation():
    for x in (TRUTH[:1], TRUTH[:3], DRAWS[:6]):
        with pytest.raises(InputError, match=r"one sample per observation, \(6, 5\)"):
            OBS.chi2(x)
        with pytest.raises(InputError, match=r"one sample per observation, \(6, 5\)"):
            metrics.simulate(x, OBS)
