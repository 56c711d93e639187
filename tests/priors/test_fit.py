"""The Gaussian fit: monotone likelihood, known answers, agreement of its algorithms."""

import math

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.core.errors import InputError
from diffem.linalg import DenseCovariance
from diffem.observations.batches import Batches
from diffem.priors import rounds
from diffem.priors.fit_full import GROWTH, FullModel

from ..exact import matrix_of, random_covariance


def log_likelihood(prior_mean, prior_cov, obs):
    """Log-likelihood of the observed data per measured value, by dense algebra independent of the library."""
    matrix = matrix_of(obs.A, obs.x_shape, len(obs))
    shape = obs.y.shape
    eye = torch.eye(shape[1:].numel(), dtype=torch.float64).reshape(-1, 1, *shape[1:])
    noise = torch.stack([obs.cov.matvec(e.expand(shape)).flatten(1) for e in eye], -1)
    measured = obs.measured
    measured = torch.ones_like(obs.y, dtype=torch.bool) if measured is None else measured.expand_as(obs.y)
    total, count = 0.0, 0
    for i in range(len(obs)):
        keep = measured[i].flatten()
        rows, y = matrix[i][keep], obs.y[i].flatten()[keep]
        cov = rows @ prior_cov @ rows.T + noise[i][keep][:, keep]
        total += float(torch.distributions.MultivariateNormal(rows @ prior_mean, cov).log_prob(y))
        count += int(keep.sum())
    return total / count


def problem(seed, n=60, kind="mask"):
    generator = torch.Generator().manual_seed(seed)
    size = 6
    truth = random_covariance(size, seed)
    x = torch.randn(n, size, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(truth).T + 1.0
    x = x.reshape(n, 2, 3)
    if kind.startswith("mask"):
        mask = torch.rand(n, 2, 3, generator=generator) < 0.6
        mask[:, 0, 0] = True
        A = operators.Mask(mask)
    elif kind == "dense":
        A = operators.Dense(torch.randn(n, 3, 6, generator=generator, dtype=torch.float64), event_shape=(2, 3))
    else:
        A = operators.Blur(torch.rand(n, 2, 2, generator=generator, dtype=torch.float64))
    y = A(x)
    noise = torch.randn(y.shape, generator=generator, dtype=torch.float64)
    if kind == "mask, full noise":
        cov = DenseCovariance(0.1 * random_covariance(size, seed + 10))
        return Observations(y + cov.sqrt(noise), A, cov=cov)
    return Observations(y + 0.2 * noise, A, sigma=0.2)


@pytest.mark.parametrize("rank", [None, 2])
@pytest.mark.parametrize(
    ("seed", "kind"), [(0, "mask"), (1, "mask"), (2, "dense"), (3, "dense"), (4, "blur"), (5, "mask, full noise")]
)
def test_the_likelihood_never_decreases_and_is_the_likelihood(seed, kind, rank):
    obs, history = problem(seed, kind=kind), priors.FitHistory()
    prior = priors.fit_gaussian(obs, rank, rounds=60, tolerance=-1.0, history=history)
    steps = torch.tensor(history.log_likelihood).diff()
    # if AAᵀ is not diagonal, the low-rank fit estimates a trace with one sign vector per observation
    slack = 1e-12 if rank is None or kind == "mask" else 1e-3
    assert (steps > -slack).all()
    cov = torch.stack(
        [prior.covariance().matvec(e.reshape(1, 2, 3)).flatten() for e in torch.eye(6, dtype=torch.float64)]
    )
    expected = log_likelihood(prior.mean.flatten(), cov, obs)
    assert history.log_likelihood[-1] == pytest.approx(expected, abs=2e-3)


@pytest.mark.parametrize("seed", range(5))
def test_the_default_stopping_rule_is_as_good_as_a_long_run(seed):
    obs = problem(seed, n=400)
    short = priors.fit_gaussian(obs)
    long = priors.fit_gaussian(obs, rounds=5_000, tolerance=1e-15)
    assert (short.mean - long.mean).norm() / long.mean.norm() < 1e-4
    a, b = (p.covariance().matrix()[0] for p in (short, long))
    assert (a - b).norm() / b.norm() < 1e-4


def test_a_thousand_observations_of_a_known_gaussian_give_it_back():
    n, size = 1000, 6
    generator = torch.Generator().manual_seed(0)
    truth = random_covariance(size, 11)
    x = torch.randn(n, size, generator=generator, dtype=torch.float64) @ torch.linalg.cholesky(truth).T + 0.5
    mask = torch.rand(n, size, generator=generator) < 0.7
    y = x + 0.1 * torch.randn(n, size, generator=generator, dtype=torch.float64)
    prior = priors.fit_gaussian(Observations(y, operators.Mask(mask), sigma=0.1))
    # a coordinate is measured 700 times and a pair 490 times: four standard errors of the mean and of the covariance
    spread = truth.diagonal().sqrt()
    assert ((prior.mean - 0.5).abs() < 4 * spread / math.sqrt(0.7 * n)).all()
    error = 4 * (truth**2 + spread.outer(spread) ** 2).sqrt() / math.sqrt(0.49 * n)
    assert ((prior.covariance().matrix()[0] - truth).abs() < error).all()


def test_low_rank_recovers_a_low_rank_truth():
    n, shape = 3000, (4, 5)
    generator = torch.Generator().manual_seed(0)
    factor = torch.randn(2, 20, generator=generator, dtype=torch.float64)
    x = torch.randn(n, 2, generator=generator, dtype=torch.float64) @ factor
    x = (x + 0.3 * torch.randn(n, 20, generator=generator, dtype=torch.float64)).reshape(n, *shape)
    mask = torch.rand(n, *shape, generator=generator) < 0.5
    obs = Observations(
        x + 0.1 * torch.randn(x.shape, generator=generator, dtype=torch.float64), operators.Mask(mask), sigma=0.1
    )
    prior = priors.fit_gaussian(obs, rank=2)
    truth = factor.T @ factor + 0.09 * torch.eye(20)
    got = torch.stack(
        [prior.covariance().matvec(e.reshape(1, *shape)).flatten() for e in torch.eye(20, dtype=torch.float64)]
    )
    # sampling error of 3,000 vectors with half of the entries measured
    assert (got - truth).norm() / truth.norm() < 0.08
    assert float(prior.covariance()._tensors["variances"].mean()) == pytest.approx(0.09, rel=0.1)


def test_the_fit_does_not_depend_on_the_batch_size():
    obs = problem(0)
    for rank in (None, 2):
        a, b = (priors.fit_gaussian(obs, rank, rounds=20, batch_size=size) for size in (60, 7))
        assert torch.allclose(a.mean, b.mean, atol=1e-10)


def test_a_continued_fit_equals_a_single_one():
    """Ten rounds and ten more equal twenty, up to the rounding of the prior in between."""
    for kind in ("mask", "dense"):
        obs = problem(0, kind=kind)
        whole, part, rest = priors.FitHistory(), priors.FitHistory(), priors.FitHistory()
        priors.fit_gaussian(obs, rounds=19, tolerance=-1.0, history=whole)
        first = priors.fit_gaussian(obs, rounds=10, tolerance=-1.0, history=part)
        priors.fit_gaussian(obs, rounds=10, tolerance=-1.0, start=first, history=rest)
        value = log_likelihood(first.mean.flatten(), first.covariance().matrix()[0], obs)
        assert rest.log_likelihood[0] == pytest.approx(value, abs=1e-10)
        assert rest.log_likelihood[-1] >= value > part.log_likelihood[-1]
    with pytest.raises(ValueError, match=r"start must be a Gaussian over \(2, 3\)"):
        priors.fit_gaussian(obs, rank=2, start=first)


def test_everything_measured_needs_no_rounds():
    """For A = I, the closed form equals the limit of the iterations for a mask of ones, and so does its likelihood."""
    y = problem(0, n=60).y + torch.randn(60, 2, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    obs, history = Observations(y, operators.Identity(), sigma=0.2), priors.FitHistory()
    closed = priors.fit_gaussian(obs, history=history)
    masked = Observations(y, operators.Mask(torch.ones(2, 3, dtype=torch.bool)), sigma=0.2)
    iterated = priors.fit_gaussian(masked, rounds=2000, tolerance=1e-14)
    assert torch.allclose(closed.mean, iterated.mean, atol=1e-8)
    a, b = (p.covariance().matrix()[0] for p in (closed, iterated))
    assert torch.allclose(a, b, atol=1e-5)  # tolerance of the stopping rule
    assert history.log_likelihood == [pytest.approx(log_likelihood(closed.mean.flatten(), a, obs), abs=1e-10)]
    # its posterior draws agree too, with the same random numbers, also with a separate noise level for each observation
    for sigma in (0.2, torch.linspace(0.1, 0.3, 60, dtype=torch.float64)):
        x, z = (closed.draw_posterior(Observations(y, A, sigma=sigma)) for A in (operators.Identity(), masked.A))
        assert torch.allclose(x, z, atol=1e-10)


def test_directions_below_the_noise_have_no_variance():
    y = torch.zeros(50, 3, dtype=torch.float64)
    y[:, 0] = torch.linspace(-1, 1, 50)
    prior = priors.fit_gaussian(Observations(y, operators.Identity(), sigma=0.1))
    expected = torch.diag(torch.tensor([float(y[:, 0].square().mean()) - 0.01, 0, 0], dtype=torch.float64))
    assert torch.allclose(prior.covariance().matrix()[0], expected, atol=1e-12)


def test_an_extrapolation_that_goes_too_far_is_undone(monkeypatch):
    """The extrapolated covariances have no Cholesky factor, so the rounds are those of plain EM."""
    generator = torch.Generator().manual_seed(0)
    A = operators.Dense(torch.randn(60, 5, 8, generator=generator, dtype=torch.float64))
    x = torch.randn(60, 8, generator=generator, dtype=torch.float64) @ random_covariance(8)
    y = A(x) + 0.1 * torch.randn(60, 5, generator=generator, dtype=torch.float64)
    monkeypatch.setattr(rounds, "_extrapolate", lambda start, first, second: start + 1e4 * (second - start))
    history = priors.FitHistory()
    priors.fit_gaussian(Observations(y, A, sigma=0.1), rounds=9, tolerance=0, history=history, progress=False)
    assert len(history.log_likelihood) == 9
    assert (torch.tensor(history.log_likelihood).diff() > 0).all()


def test_the_round_after_an_extrapolation_corrects_a_variance_that_is_far_too_large():
    """Such a variance costs little likelihood, so extrapolations can have one; no fit ends before the next round.

    The other directions, which the observations do not separate from this one, keep it from being right at once.
    """
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(400, 8, generator=generator) < 0.5
    x = torch.randn(400, 8, generator=generator, dtype=torch.float64)
    obs = Observations(mask * (x + 0.1 * torch.randn(400, 8, generator=generator)), operators.Mask(mask), sigma=0.1)
    direction = torch.nn.functional.normalize(torch.randn(8, generator=generator, dtype=torch.float64), dim=0)
    far = torch.eye(8, dtype=torch.float64) + 1e6 * direction.outer(direction)
    start = priors.GaussianPrior(torch.zeros(8, dtype=torch.float64), far)
    fitted = priors.fit_gaussian(obs, rounds=1, tolerance=-1.0, start=start)
    assert float(torch.linalg.eigvalsh(fitted.covariance().matrix()[0])[-1]) < 30


@pytest.mark.parametrize("size", [0.0, 1.0])
def test_an_extrapolated_variance_is_bounded_by_the_covariance_before(size):
    model = FullModel(Batches(problem(0), 60, None), 60)
    model.cov = size * torch.eye(6, dtype=torch.float64)
    log = torch.diag(torch.tensor([20.0, 0.5, 0, 0, -1, -90], dtype=torch.float64))
    model.set_parameters(torch.cat([torch.zeros(6), log.flatten()]))
    bound = max(GROWTH * 6**0.5 * size, math.exp(-70))
    expected = log.diagonal().exp().clamp(math.exp(-70), bound)
    assert torch.allclose(model.cov, torch.diag(expected), rtol=1e-12, atol=0)


def test_bad_input_is_rejected():
    obs = problem(0)
    with pytest.raises(ValueError, match="rank must lie between 1 and 5, got 6"):
        priors.fit_gaussian(obs, rank=6)
    for options in ({"moments": "Sampled"}, {"rounds": 0}, {"rounds": 2.5}, {"batch_size": 0}, {"rank": True}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} must be .*, got"):
            priors.fit_gaussian(obs, **options)
    big = Observations(torch.zeros(1, 80, 80), operators.Identity(), sigma=1.0)
    with pytest.raises(ValueError, match=r"6400 numbers.*rank"):
        priors.fit_gaussian(big)


def precise(noise, size=80, rank=5, n=40):
    """Masked observations of samples of low rank with little noise, and the covariance of the samples."""
    generator = torch.Generator().manual_seed(0)
    U = torch.randn(size, rank, generator=generator, dtype=torch.float64)
    x = torch.randn(n, rank, generator=generator, dtype=torch.float64) @ U.T
    y = x + noise * torch.randn(n, size, generator=generator, dtype=torch.float64)
    mask = torch.rand(n, size, generator=generator) < 0.9
    return Observations(torch.where(mask, y, 0), operators.Mask(mask), sigma=noise), U @ U.T


def test_posteriors_of_a_singular_covariance_with_little_noise_fit_their_observations():
    # draws of the right posterior have chi2 about 1 per value, (80 − 5)/80 of it from values that x cannot follow;
    # the covariance of the measured values is singular to 1e-9, and its factor could not be computed
    obs, cov = precise(1e-4)
    draws = priors.GaussianPrior(torch.zeros(80, dtype=torch.float64), cov).posterior(obs).sample(seed=0)
    assert abs(float(obs.chi2(draws).mean()) - 1) < 5 * math.sqrt(2 / obs.counts().sum())


def test_noise_that_float64_cannot_resolve_beside_the_signal_is_refused():
    obs, cov = precise(1e-7)
    with pytest.raises(InputError, match="too small compared with the signal"):
        priors.GaussianPrior(torch.zeros(80, dtype=torch.float64), cov).posterior(obs).sample(seed=0)
    with pytest.raises(InputError, match="too small compared with the signal"):
        priors.fit_gaussian(obs, rounds=40)


@pytest.mark.parametrize(("y_unit", "x_unit"), [(2.0**10, 1.0), (2.0**-20, 1.0), (1.0, 2.0**30)])
@pytest.mark.parametrize("rank", [None, 2])
def test_the_fit_does_not_depend_on_the_units_of_y_and_x(rank, y_unit, x_unit):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(100, 2, generator=generator) @ torch.randn(2, 8, generator=generator)
    matrix = torch.randn(100, 4, 8, generator=generator)
    y = operators.Dense(matrix)(x) + 0.1 * torch.randn(100, 4, generator=generator)

    def fit(y_unit, x_unit):
        obs = Observations(y_unit * y, operators.Dense(y_unit / x_unit * matrix), sigma=0.1 * y_unit)
        prior = priors.fit_gaussian(obs, rank, rounds=5)
        return prior.mean / x_unit, prior.covariance().diagonal((8,)) / x_unit**2

    for found, expected in zip(fit(y_unit, x_unit), fit(1.0, 1.0), strict=True):
        assert torch.equal(found, expected)


def test_the_low_rank_fit_of_few_dense_observations_has_exact_moments():
    # traces estimated with random signs are far off for few observations: the likelihood fell, and the fit ended
    generator = torch.Generator().manual_seed(2)
    matrix = torch.randn(20, 3, 5, generator=generator, dtype=torch.float64)
    x = torch.randn(20, 5, generator=generator, dtype=torch.float64) * torch.tensor([2.0, 1, 1, 0.5, 0.5]) + 3
    y = (matrix @ x.unsqueeze(-1)).squeeze(-1) + 0.2 * torch.randn(20, 3, generator=generator, dtype=torch.float64)
    history = rounds.FitHistory()
    priors.fit_gaussian(Observations(y, operators.Dense(matrix), sigma=0.2), rank=2, rounds=60, history=history)
    steps = torch.tensor(history.log_likelihood, dtype=torch.float64).diff()
    assert (steps > -1e-9).all()  # the tolerance of the solves
