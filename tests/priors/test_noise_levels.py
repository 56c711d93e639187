"""Estimates of unknown noise levels, against exact answers and where the data cannot determine them."""

from __future__ import annotations

import math

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.noise_start import noise_start
from diffem.em.start import Fitting
from diffem.priors.noise_constant import level_of_constants
from diffem.priors.noise_scoring import maximum_likelihood
from diffem.priors.noise_split import factor_split, smallest_accepted, split_noise
from diffem.runs.recipe import load_recipe

RECIPE = load_recipe(
    {
        "name": "start",
        "data": {"source": "given"},
        "laps": 1,
        "train": {"steps": 1},
        "gaussian": {"rounds": 20, "tolerance": 1e-6},
    },
    {},
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def low_rank(n: int, sigma: torch.Tensor | float, rank: int = 3, size: int = 12, seed: int = 0) -> torch.Tensor:
    """Samples `(n, size)` in a subspace, with noise."""
    g = generator(seed)
    loading = torch.randn(rank, size, generator=g, dtype=torch.float64)
    z = torch.randn(n, rank, generator=g, dtype=torch.float64)
    return z @ loading + sigma * torch.randn(n, size, generator=g, dtype=torch.float64)


def estimated(y: torch.Tensor, A: operators.Operator, **options: object) -> priors.levels.NoiseLevels:
    """The levels of the Gaussian start of a run."""
    obs = Observations(y, A, sigma="learn", **options)
    prior, _ = noise_start(RECIPE, obs, Fitting(torch.device("cpu"), progress=False))
    assert prior.noise is not None
    return prior.noise


def test_complete_data_of_low_rank_give_the_maximum_likelihood_level_of_probabilistic_pca():
    y, rank = low_rank(2000, 0.2), 3
    values = torch.linalg.eigvalsh(torch.cov(y.T, correction=0))
    exact = float(values[: 12 - rank].mean().sqrt())
    found = estimated(y, operators.Identity())
    assert found.is_determined
    # the estimate corrects the maximum for the n − r − 1 observations that the signal's directions leave
    assert found.sigma[0] == pytest.approx(exact, rel=0.01)
    assert found.sigma[0] == pytest.approx(exact * (2000 / (2000 - rank - 1)) ** 0.5, rel=1e-4)


def test_the_rank_of_a_recipe_gives_the_same_level():
    y = low_rank(500, 0.2)
    recipe = RECIPE.model_copy(update={"gaussian": RECIPE.gaussian.model_copy(update={"rank": 3, "rounds": 60})})
    prior, _ = noise_start(
        recipe, Observations(y, operators.Identity(), sigma="learn"), Fitting(torch.device("cpu"), progress=False)
    )
    values = torch.linalg.eigvalsh(torch.cov(y.T, correction=0))
    assert prior.noise.sigma[0] == pytest.approx(float(values[:9].mean().sqrt()), rel=0.01)


def test_masked_data_of_low_rank_determine_the_level():
    found = estimated(low_rank(1500, 0.2), operators.Mask(torch.rand(1500, 12, generator=generator(1)) < 0.7))
    assert found.is_determined
    assert found.sigma[0] == pytest.approx(0.2, rel=3 * found.error[0])  # three standard errors, 3 % here


@pytest.mark.parametrize("seed", range(20))
def test_masks_of_a_gaussian_of_full_rank_do_not_determine_the_noise(seed):
    g = generator(seed)
    x = torch.randn(300, 6, generator=g, dtype=torch.float64) @ torch.randn(6, 6, generator=g, dtype=torch.float64)
    y = x + 0.2 * torch.randn(300, 6, generator=g, dtype=torch.float64)
    assert not estimated(y, operators.Mask(torch.rand(300, 6, generator=g) < 0.6)).is_determined


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
def test_a_stationary_sequence_does_not_determine_its_noise(correlation):
    # the spectrum of an autoregressive sequence is flat at its lower end, and standardised entries have equal variances
    place = torch.arange(12, dtype=torch.float64)
    root = torch.linalg.cholesky(correlation ** (place[:, None] - place).abs())
    g = generator()
    y = torch.randn(600, 12, generator=g, dtype=torch.float64) @ root.T
    y = y + 0.1 * torch.randn(600, 12, generator=g, dtype=torch.float64)
    assert not estimated(y, operators.Mask(torch.rand(600, 12, generator=g) < 0.6)).is_determined


def falling_spectrum(n: int, size: int, seed: int) -> torch.Tensor:
    """Samples `(n, size)` with standard deviations 2, 2/√2, 1, … in orthogonal directions, and noise of 0.1."""
    g = generator(seed)
    basis = torch.linalg.qr(torch.randn(size, size, generator=g, dtype=torch.float64)).Q
    scales = 2 * 0.5 ** (torch.arange(size, dtype=torch.float64) / 2)
    x = (torch.randn(n, size, generator=g, dtype=torch.float64) * scales) @ basis
    return x + 0.1 * torch.randn(n, size, generator=g, dtype=torch.float64)


@pytest.mark.parametrize("seed", range(4))
def test_few_observations_of_a_falling_spectrum_cannot_tell_its_noise(seed):
    """Of 80 observations, 48 measure each of 40 values: eigenvalues of noise and of the signal look alike."""
    mask = torch.rand(80, 40, generator=generator(seed)) < 0.6
    obs = Observations(falling_spectrum(80, 40, seed), operators.Mask(mask), sigma="learn")
    until_held_out = RECIPE.gaussian.model_copy(update={"rounds": None})
    for recipe in (RECIPE, RECIPE.model_copy(update={"gaussian": until_held_out})):
        found = noise_start(recipe, obs, Fitting(torch.device("cpu"), progress=False))[0].noise
        assert not found.is_determined
        assert found.interval()[1][0] > 0.1


@pytest.mark.parametrize("n", [20, 60, 200])
def test_the_largest_level_that_few_complete_observations_allow_is_above_the_noise(n):
    """The smallest eigenvalue of their covariance is far below the noise: 0 for 20 observations of 40 values."""
    found = estimated(falling_spectrum(n, 40, 0), operators.Identity())
    assert not found.is_determined
    assert 0.1 < found.interval()[1][0] < 0.5


def test_constant_entries_give_the_level_of_every_group_of_observations():
    levels, labels = torch.tensor([0.01, 0.1, 1.0, 10.0], dtype=torch.float64), torch.arange(800) % 4
    g = generator()
    x = torch.cat([torch.randn(800, 4, generator=g), torch.full((800, 6), 0.3)], 1).double()
    y = x + levels[labels][:, None] * torch.randn(800, 10, generator=g, dtype=torch.float64)
    found = estimated(y, operators.Mask(torch.rand(800, 10, generator=g) < 0.8), groups=labels + 7)
    assert found.is_determined
    # 1,000 constant values in each group: a standard error of 2.3 %
    assert found.sigma == pytest.approx(levels.tolist(), rel=0.1)


def test_entries_that_vary_by_rounding_errors_contain_no_noise():
    g = generator()
    y = torch.cat([torch.randn(800, 4, generator=g), torch.full((800, 6), 0.3)], 1)
    y = y + 0.1 * torch.randn(800, 10, generator=g)
    y[:, 5:9] = 1e-8 * torch.randn(800, 4, generator=g)  # such as the corners of rotated images
    y = torch.cat([y, torch.full((800, 3), 0.3) + 0.1 * torch.randn(800, 3, generator=g)], 1)
    found = level_of_constants(Observations(y, operators.Identity(), sigma="learn"))
    assert found is not None
    assert found.sigma[0] == pytest.approx(0.1, rel=4 * found.error[0])  # 5 entries of noise alone: 1.1 % each


def test_levels_that_are_not_determined_are_bounded_from_above_only():
    levels = priors.levels.NoiseLevels((0.1,), (0.05,), is_determined=False)
    assert levels.interval() == ((0.0,), pytest.approx((0.1 * 1.103,), rel=1e-3))  # exp(1.96 · 0.05)
    assert str(levels) == "at most 0.11"


def test_columns_of_equal_variance_that_are_correlated_are_not_constant():
    z = torch.randn(400, 1, generator=generator())
    y = z + 0.5 * torch.randn(400, 6, generator=generator(1))
    assert level_of_constants(Observations(y / y.std(0), operators.Identity(), sigma="learn")) is None


def test_entries_that_are_hardly_measured_together_are_not_constant():
    """Of 60 observations, 36 measure an entry and 22 a pair: too few to see that all entries are the same number."""
    g = generator()
    y = torch.randn(60, 1, generator=g) + 0.1 * torch.randn(60, 64, generator=g)
    mask = torch.rand(60, 64, generator=g) < 0.6
    assert level_of_constants(Observations(y, operators.Mask(mask), sigma="learn")) is None


@pytest.mark.parametrize("masked", [False, True])
def test_factor_analysis_gives_one_level_per_column_group(masked):
    groups = torch.arange(12) // 3
    levels = torch.tensor([0.05, 0.1, 0.2, 0.5], dtype=torch.float64)
    y = low_rank(1500, levels[groups])
    A = operators.Mask(torch.rand(1500, 12, generator=generator(1)) < 0.7) if masked else operators.Identity()
    found = estimated(y, A, groups=groups)
    assert found.is_determined
    assert found.sigma == pytest.approx(levels.tolist(), rel=0.1)


def test_rows_that_overlap_determine_the_level():
    g = generator()
    A = torch.randn(300, 8, 5, generator=g, dtype=torch.float64)
    x = torch.randn(300, 5, generator=g, dtype=torch.float64) @ torch.randn(5, 5, generator=g, dtype=torch.float64)
    y = (A @ x.unsqueeze(-1)).squeeze(-1) + 0.1 * torch.randn(300, 8, generator=g, dtype=torch.float64)
    found = estimated(y, operators.Dense(A))
    assert found.is_determined
    assert found.sigma[0] == pytest.approx(0.1, rel=3 * found.error[0])


def test_one_invertible_operator_bounds_the_level_from_above():
    """Every smaller level explains y as well. The bound is the smallest standard deviation of y in any direction."""
    g, n, size = generator(), 400, 6
    A = torch.eye(size, dtype=torch.float64) + 0.3 * torch.randn(size, size, generator=g, dtype=torch.float64)
    x = torch.randn(n, size, generator=g, dtype=torch.float64) * torch.linspace(0, 2, size)  # constant in one entry
    y = x @ A.T + 0.3 * torch.randn(n, size, generator=g, dtype=torch.float64)
    found = estimated(y, operators.Dense(A))
    assert not found.is_determined
    smallest = float(torch.linalg.eigvalsh(torch.cov(y.T, correction=0))[0].sqrt())
    # the likelihood may fall by 1.92 nats: a level above the smallest deviation s by δ costs about n (δ/s)², or 7 %
    assert 0.96 * smallest < found.sigma[0] < 1.07 * smallest
    assert found.interval()[0] == (0.0,)
    assert found.interval()[1][0] > 0.3


@pytest.mark.parametrize(("rows", "size", "rank"), [(6, 3, 3), (4, 6, 1)])
def test_scoring_ends_where_the_likelihood_is_largest(rows, size, rank):
    """Samples in a subspace: their covariance becomes 0 in the other directions only slowly, and takes noise there."""
    g = generator(2)
    A = torch.randn(200, rows, size, generator=g, dtype=torch.float64)
    z, loading = (torch.randn(shape, generator=g, dtype=torch.float64) for shape in ((200, rank), (rank, size)))
    x = z if rank == size else z @ loading
    y = (A @ x.unsqueeze(-1)).squeeze(-1) + 0.3 * torch.randn(200, rows, generator=g, dtype=torch.float64)

    def fit(obs: Observations, start: priors.GaussianPrior | None, rounds: int) -> priors.GaussianPrior:
        return priors.fit_gaussian(obs, rounds=rounds, tolerance=1e-9, start=start, progress=False)

    _, log_variance = maximum_likelihood(Observations(y, operators.Dense(A), sigma="learn"), fit)

    def likelihood(factor: float) -> float:
        history = priors.FitHistory()
        obs = Observations(y, operators.Dense(A), sigma=factor * math.exp(0.5 * float(log_variance)))
        priors.fit_gaussian(obs, rounds=300, history=history, progress=False)
        return history.log_likelihood[-1]

    best = likelihood(1.0)
    assert best > likelihood(0.97)
    assert best > likelihood(1.03)


def test_the_level_of_samples_in_a_subspace_has_no_bias():
    """Four data sets of 1,200 × 6 values, of which 1,024 are scored: a level has a standard error of 1 %.

    Maximum likelihood is 3 % too low, because covariances have no negative eigenvalues.
    """
    loading, errors = torch.randn(2, 8, generator=generator(9), dtype=torch.float64), []
    for seed in range(4):
        g = generator(seed)
        A = torch.randn(1200, 6, 8, generator=g, dtype=torch.float64) / math.sqrt(8)
        x = torch.randn(1200, 2, generator=g, dtype=torch.float64) @ loading
        y = (A @ x.unsqueeze(-1)).squeeze(-1) + 0.1 * torch.randn(1200, 6, generator=g, dtype=torch.float64)
        found = estimated(y, operators.Dense(A))
        errors.append(math.log(found.sigma[0] / 0.1))
        assert 0.009 < found.error[0] < 0.05  # 1/√(2 · 6 · 1024), and whether small directions vary
        assert abs(errors[-1]) < 3 * found.error[0]
    assert abs(sum(errors) / 4) < 0.015  # three standard errors of a mean of four


def test_one_group_splits_off_the_mean_of_the_smallest_eigenvalues():
    matrix = torch.diag(torch.tensor([5.0, 3.0, 0.4, 0.2, 0.3], dtype=torch.float64))
    signal, variances = factor_split(matrix, torch.zeros(5, dtype=torch.int64), 2)
    assert variances.tolist() == pytest.approx([0.3])
    assert signal.diagonal().tolist() == pytest.approx([4.7, 2.7, 0, 0, 0], abs=1e-12)


def test_the_signal_and_the_noise_add_up_to_the_covariance_of_complete_data():
    y = low_rank(400, 0.2)
    obs = Observations(y, operators.Identity(), sigma=1e-4)
    prior = priors.fit_gaussian(obs, progress=False)
    signal, _ = split_noise(prior, obs, torch.zeros(12, dtype=torch.int64), len(obs))
    kept = torch.linalg.eigvalsh(signal.covariance().matrix()[0])
    assert int((kept > 1e-6).sum()) == 3


def test_the_smallest_accepted_rank_is_found_by_bisection():
    for smallest in range(9):
        assert smallest_accepted(lambda rank, smallest=smallest: rank >= smallest, 7) == min(smallest, 7)
