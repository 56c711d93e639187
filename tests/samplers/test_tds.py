"""Twisted diffusion sampling: its parts by identities, its draws against exact posteriors."""

import math

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.em.expectation import draw_shard
from diffem.linalg import DenseCovariance, Isotropic, System
from diffem.posterior.likelihood import lanczos_logdet
from diffem.runs.recipe import EStep
from diffem.samplers.tds import normalised, systematic

from ..exact import random_covariance
from ..posterior.registry import ANY_PRIOR, CONFIGURATIONS

DOUBLE = torch.float64


def gaussian(size=4):
    return priors.GaussianPrior(torch.linspace(-1, 1, size, dtype=DOUBLE), random_covariance(size, seed=3))


def dense_observations(n=3, m=2, size=4, sigma=0.4):
    generator = torch.Generator().manual_seed(1)
    A = operators.Dense(torch.randn(n, m, size, generator=generator, dtype=DOUBLE))
    return Observations(torch.randn(n, m, generator=generator, dtype=DOUBLE), A, sigma=sigma)


def mixture():
    """Three clusters on a line and a fourth off it: p(x | x_t) has several modes at middle noise, where MMPS fails."""
    means = torch.tensor([[-4.0, 0.0], [0.0, 1.0], [4.0, 0.0], [1.0, -4.0]], dtype=DOUBLE)
    weights = torch.tensor([0.4, 0.1, 0.2, 0.3], dtype=DOUBLE)
    return priors.MixturePrior(weights, means, torch.full((4,), 0.5, dtype=DOUBLE))


def ambiguous_observation():
    """One observation with one row, which two clusters explain equally well."""
    A = operators.Dense(torch.tensor([[0.2, 1.0]], dtype=DOUBLE))
    return Observations(torch.tensor([[0.3]], dtype=DOUBLE), A, sigma=0.3)


def test_systematic_resampling_is_unbiased():
    """Every particle is picked ⌊Pw⌋ or ⌈Pw⌉ times, and on average over the uniform number exactly Pw times."""
    w = torch.tensor([[0.5, 0.25, 0.2, 0.05], [0.0, 1.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]], dtype=DOUBLE)
    grid = (torch.arange(1000, dtype=DOUBLE) + 0.5) / 1000
    ancestors = torch.stack([systematic(w, u.expand(3), w.shape[1]) for u in grid])  # (1000, 3, P)
    counts = torch.nn.functional.one_hot(ancestors, 4).sum(2).double()
    assert (counts >= (4 * w - 1e-9).floor()).all()
    assert (counts <= (4 * w + 1e-9).ceil()).all()
    assert torch.allclose(counts.mean(0), 4 * w, atol=4e-3)  # four times the spacing of the grid


def test_fewer_picks_than_particles():
    w = torch.tensor([[0.5, 0.25, 0.2, 0.05]], dtype=DOUBLE)
    grid = (torch.arange(1000, dtype=DOUBLE) + 0.5) / 1000
    picked = torch.stack([systematic(w, u.expand(1), 2) for u in grid])  # (1000, 1, 2)
    counts = torch.nn.functional.one_hot(picked, 4).sum(2).double()
    assert (counts[:, 0, 0] == 1).all()  # half the weight gets one of two picks
    assert torch.allclose(counts.mean(0), 2 * w, atol=2e-3)


def test_weights_with_nan_stay_valid():
    nan, inf = math.nan, math.inf
    w = normalised(torch.tensor([[0.0, nan, math.log(3)], [-inf, -inf, nan], [-1e9, -1e9, -1e9 - 1], [0.0, inf, 0.0]]))
    assert torch.allclose(w[0], torch.tensor([0.25, 0.0, 0.75]))
    assert torch.allclose(w[1], torch.full((3,), 1 / 3))
    assert torch.allclose(w.sum(1), torch.ones(4))
    assert torch.allclose(w[3], torch.tensor([0.5, 0.0, 0.5]))


def exact_log_likelihood(obs, matrix, x_hat, V):
    """log N(y; A x̂, Σ_y + A V Aᵀ) on the measured entries of each observation."""
    out = []
    size = obs.y.shape[1]
    noise = torch.stack([obs.cov.matvec(e.expand_as(obs.y)) for e in torch.eye(size, dtype=DOUBLE)], -1)
    measured = torch.ones_like(obs.y, dtype=torch.bool) if obs.measured is None else obs.measured.expand_as(obs.y)
    for i in range(len(obs)):
        keep = measured[i]
        rows = matrix[i][keep]
        cov = noise[i][keep][:, keep] + rows @ V @ rows.T
        out.append(torch.distributions.MultivariateNormal(rows @ x_hat[i], cov).log_prob(obs.y[i][keep]))
    return torch.stack(out)


@pytest.mark.parametrize(
    "options",
    [
        {"solver": "direct"},
        {"solver": "cg", "iterations": 8},
        {"solver": "gmres", "iterations": 4},
        {"method": "sigma_x"},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["dense A", "mask", "mask, full noise covariance"])
def test_the_twist_of_a_gaussian_prior_is_its_likelihood(options, kind):
    """Differences between two x_t of the same observation, in which the constant cancels."""
    prior, n = gaussian(), 3
    if kind.startswith("mask"):
        mask = torch.tensor([[True, False, True, True], [True, True, True, True], [False, False, True, False]])
        cov = DenseCovariance(random_covariance(4, seed=7)) if "full" in kind else Isotropic(0.16)
        obs = Observations(torch.randn(n, 4, dtype=DOUBLE), operators.Mask(mask), cov=cov)
        matrix = torch.diag_embed(mask.double())
    else:
        obs = dense_observations()
        matrix = obs.A.tensors()["matrix"]
    posterior = prior.posterior(obs, **options)
    cov = random_covariance(4, seed=3)
    for sigma in (0.05, 1.0, 30.0):
        V = sigma**2 * torch.linalg.solve(cov + sigma**2 * torch.eye(4), cov)
        got, expected = [], []
        for _ in range(2):
            x_t = sigma * torch.randn(n, 4, dtype=DOUBLE)
            evaluation = posterior.evaluate(x_t, torch.tensor(sigma, dtype=DOUBLE))
            got.append(evaluation.log_likelihood(obs, torch.ones_like(obs.y), posterior.iterations + 4))
            expected.append(exact_log_likelihood(obs, matrix, prior(x_t, sigma), V))
        # the whole density up to the constant of 2π: the determinant is included
        constant = -0.5 * obs.counts() * math.log(2 * math.pi)
        assert torch.allclose(got[0] + constant, expected[0], rtol=1e-7, atol=1e-7)
        assert torch.allclose(got[0] - got[1], expected[0] - expected[1], rtol=1e-7, atol=1e-7)


def test_lanczos_determinant_under_correlated_noise():
    """Only eigenvalues of M below the smallest eigenvalue of the noise covariance are clamped.

    With as many Lanczos steps as dimensions, zᵀ log(M) z is exact. Here A V Aᵀ = 0, and M = Σ_y has eigenvalues 0.1 and
    1.9; the first is below the smallest variance of the noise.
    """
    noise = torch.tensor([[1.0, 0.9], [0.9, 1.0]], dtype=DOUBLE)
    obs = Observations(torch.zeros(1, 2, dtype=DOUBLE), operators.Mask(torch.ones(1, 2)), cov=DenseCovariance(noise))
    system = System(lambda p: (torch.zeros_like(p), torch.zeros_like(p)), obs.noise)
    probe = torch.tensor([[1.0, -1.0]], dtype=DOUBLE)
    assert float(lanczos_logdet(system, probe, obs, 2)) == pytest.approx(2 * math.log(0.1), rel=1e-12)


def test_the_lanczos_determinant_is_unbiased():
    """Exact in one step for a multiple of the identity; unbiased over probes for a full matrix."""
    mask = torch.rand(2, 30) < 0.5
    obs = Observations(torch.randn(2, 30, dtype=DOUBLE), operators.Mask(mask), sigma=0.3)
    isotropic = priors.GaussianPrior(torch.zeros(30, dtype=DOUBLE), 0.7 * torch.eye(30, dtype=DOUBLE))
    x_t, sigma = torch.randn(2, 30, dtype=DOUBLE), torch.tensor(0.5, dtype=DOUBLE)
    system = isotropic.posterior(obs).evaluate(x_t, sigma).system
    probe = torch.randn(2, 30, dtype=DOUBLE).sign()
    expected = mask.sum(1).double() * math.log(0.09 + 0.25 * 0.7 / 0.95)
    assert torch.allclose(lanczos_logdet(system, probe, obs, 1), expected, rtol=1e-12)

    n, size = 4000, 6
    A = operators.Dense(torch.randn(size, size, dtype=DOUBLE))
    prior, many = gaussian(size), Observations(torch.zeros(n, size, dtype=DOUBLE), A, sigma=0.3)
    system = prior.posterior(many).evaluate(torch.zeros(n, size, dtype=DOUBLE), sigma).system
    estimates = lanczos_logdet(system, torch.randn(n, size, dtype=DOUBLE).sign(), many, size)
    cov, matrix = random_covariance(size, seed=3), A.tensors()["matrix"]
    V = 0.25 * torch.linalg.solve(cov + 0.25 * torch.eye(size), cov)
    exact = torch.logdet(0.09 * torch.eye(size) + matrix @ V @ matrix.T)
    assert abs(float(estimates.mean() - exact)) < 4 * float(estimates.std()) / math.sqrt(n)


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_an_exact_twist_leaves_weights_equal(order):
    """With a Gaussian prior and a full solve, the twist is exact: weights differ only by the error of finite steps."""
    posterior = gaussian().posterior(dense_observations(1), solver="direct")
    lost = []
    for steps in (32, 128, 384):
        _, statistics = posterior.sample(
            draws=16, steps=steps, sampler="tds", particles=8, order=order, threshold=0.0, return_stats=True
        )
        assert (statistics.resamplings == 0).all()
        lost.append(8 - float(statistics.effective.mean()))
    # the variance of log w is proportional to the step: with three times the steps, a third of the loss if it is small
    assert lost[2] < 0.5
    assert lost[0] > 1.5 * lost[1] > 3 * lost[2]


def moments_agree(x, exact, steps_bias):
    """First and second moments agree within five standard errors of the two sets plus the bias of the steps."""
    for power in (1, 2):
        a, b = x**power, exact**power
        error = ((a.var(0) + b.var(0)) / len(x)).sqrt()
        if not ((a.mean(0) - b.mean(0)).abs() < 5 * error + steps_bias * b.std(0)).all():
            return False
    return True


@pytest.mark.parametrize("order", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_draws_follow_the_exact_posterior_of_a_mixture(order):
    """Several clusters explain y. MMPS alone gives them wrong weights; 16 weighted particles give the right ones."""
    prior, obs, n = mixture(), ambiguous_observation(), 800
    exact = prior.posterior(obs, method="exact").exact_sample(n, seed=7)[:, 0]
    posterior = prior.posterior(obs, solver="direct")
    twisted, statistics = posterior.sample(draws=n, steps=128, sampler="tds", order=order, return_stats=True)
    assert moments_agree(
        twisted[:, 0], exact, 0.04 if order == 1 else 0.01
    )  # 128 steps have an error of 4 % of a standard deviation
    assert float(statistics.effective.mean()) > 4
    assert not moments_agree(posterior.sample(draws=n, steps=128)[:, 0], exact, 0.1)


@pytest.mark.parametrize(("method", "particles"), [("exact", 2), ("sigma_t", 32)])
def test_any_method_guides_to_the_same_posterior(method, particles):
    """The twist determines how many particles are needed, not the distribution of the draws."""
    prior, obs, n = mixture(), ambiguous_observation(), 300
    exact = prior.posterior(obs, method="exact").exact_sample(n, seed=7)[:, 0]
    posterior = prior.posterior(obs, method=method)
    assert moments_agree(posterior.sample(draws=n, steps=96, sampler="tds", particles=particles)[:, 0], exact, 0.06)


def test_one_particle_is_the_guided_sampler():
    posterior = gaussian().posterior(dense_observations())
    alone = posterior.sample(steps=16, sampler="tds", particles=1, seed=4)
    assert torch.allclose(alone, posterior.sample(steps=16, sampler="ddpm", seed=4), atol=1e-12)
    prior = gaussian()  # without observations all weights are equal
    for order, name in ((1, "ddpm"), (2, "ddpm2")):
        assert torch.equal(prior.sample(5, 16, "tds", particles=7, order=order), prior.sample(5, 16, name))


@pytest.mark.parametrize("name", ANY_PRIOR)
def test_draws_do_not_depend_on_the_batch(name):
    method, options = CONFIGURATIONS[name]
    prior, obs = gaussian(), dense_observations(12)
    posterior = prior.posterior(obs, method=method, **options)
    settings = {"steps": 8, "sampler": "tds", "particles": 4, "seed": 3}
    together, counted = posterior.sample(draws=2, return_stats=True, **settings)
    assert torch.allclose(posterior.sample(draws=2, batch_size=20, **settings), together, atol=1e-9)
    assert torch.allclose(posterior.sample(**settings), together[0], atol=1e-9)
    alone, statistics = posterior[7].sample(index=torch.tensor([7]), first_draw=1, return_stats=True, **settings)
    assert torch.allclose(alone[0], together[1, 7], atol=1e-9)
    assert int(statistics.resamplings[0]) == int(counted.resamplings[1, 7])
    assert (posterior.sample(**(settings | {"seed": 4})) - together[0]).abs().max() > 0.1


def test_statistics_count_every_particle():
    posterior = gaussian().posterior(dense_observations(), solver="direct")
    x, statistics = posterior.sample(draws=2, steps=5, sampler="tds", particles=4, return_stats=True)
    assert x.shape == (2, 3, 4)
    assert (statistics.evaluations == 4 * 6).all()  # four particles, five steps and the last denoising
    assert (statistics.forwards == 4 * 6).all()
    # two measured values; the solve gives the determinant, and the last denoising uses the prior
    assert (statistics.vjps == 4 * 5 * 2).all()
    assert ((statistics.effective >= 1) & (statistics.effective <= 4)).all()
    assert statistics.resamplings.shape == (2, 3)
    # one iteration: the solve takes one product, and the Lanczos estimate of the determinant another
    posterior = gaussian().posterior(dense_observations(), iterations=1)
    _, statistics = posterior.sample(steps=5, sampler="tds", particles=4, return_stats=True)
    assert (statistics.vjps == 4 * 5 * 2).all()
    _, statistics = posterior.sample(steps=5, return_stats=True)
    assert (statistics.effective == 0).all()  # no particles


def test_picks_from_one_set():
    """With equal weights all particles are picked once each, and the single pick is one of them."""
    posterior = gaussian().posterior(dense_observations(sigma=1e6), solver="direct")
    settings = {"steps": 8, "sampler": "tds", "particles": 4, "seed": 1}
    alone = posterior.sample(draws=2, **settings)
    x, statistics = posterior.sample(draws=7, picks=4, return_stats=True, **settings)
    assert x.shape == (7, 3, 4)
    assert (torch.cdist(x[:4].movedim(1, 0), x[:4].movedim(1, 0)) + torch.eye(4) > 0.1).all()
    assert ((x[:4] - alone[0]).norm(dim=2).min(0).values < 1e-9).all()
    assert statistics.evaluations[:, 0].tolist() == [4 * 9, 0, 0, 0, 4 * 9, 0, 0]
    assert torch.equal(statistics.effective[0], statistics.effective[3])
    assert torch.allclose(posterior.sample(draws=7, picks=4, batch_size=5, **settings), x, atol=1e-9)


@pytest.mark.parametrize(("first", "count"), [(1, 2), (3, 4), (5, 1), (4, 2)])
def test_a_part_of_the_draws_starts_anywhere_in_a_set(first, count):
    posterior = gaussian().posterior(dense_observations(), solver="direct")
    settings = {"steps": 4, "sampler": "tds", "particles": 3, "picks": 3, "return_stats": True}
    whole, _ = posterior.sample(draws=8, **settings)
    part, statistics = posterior.sample(draws=count, first_draw=first, **settings)
    assert torch.equal(part, whole[first : first + count])
    sets = (first + count - 1) // 3 - first // 3 + 1
    assert statistics.evaluations.sum(0).tolist() == [sets * 3 * 5] * 3


def test_picks_reduce_the_variance():
    """The fraction of four picks in one of two clusters varies less than a single draw.

    The reduction is almost that of four independent draws.
    """
    prior, obs = mixture(), ambiguous_observation()[[0] * 400]
    x = prior.posterior(obs, solver="direct").sample(draws=4, steps=32, sampler="tds", particles=16, picks=4)
    right = (x[..., 0] > 2).double()  # (4, 400)
    p = float(right.mean())
    exact = prior.posterior(ambiguous_observation(), method="exact").exact_sample(20_000)[:, 0, 0]
    assert p == pytest.approx(float((exact > 2).double().mean()), abs=4 * math.sqrt(p * (1 - p) / 400))
    # a quarter for independent draws, plus four standard errors of a variance of 400 numbers, √(2/400) each
    assert float(right.mean(0).var()) < 0.25 * (1 + 4 * math.sqrt(2 / 400)) * p * (1 - p)


def test_as_an_e_step():
    """Draws of a shard with `e_step.sampler: tds` do not depend on the batch size."""
    prior, obs = mixture(), ambiguous_observation()[[0] * 10]
    options = EStep(sampler="tds", sampler_options={"particles": 4}, solver="direct", steps=16)
    settings = {"index": torch.arange(10), "seed": 0, "lap": 1, "bound": 20.0}
    shard = draw_shard(prior, obs, options, **settings)
    assert shard.x.shape == (1, 10, 2)
    assert shard.report["evaluations"] == 10 * 4 * 17
    assert torch.allclose(draw_shard(prior, obs, options, batch_size=6, **settings).x, shard.x, atol=1e-10)


def test_picks_in_an_e_step():
    """Four draws from two sets: particles are counted once, rejected draws are redrawn, a fraction can be renewed."""
    prior, obs = mixture(), ambiguous_observation()[[0] * 10]
    options = EStep(sampler="tds", sampler_options={"particles": 4, "picks": 2}, solver="direct", steps=16, draws=4)
    settings = {"index": torch.arange(10), "seed": 0, "lap": 2, "bound": 20.0}
    shard = draw_shard(prior, obs, options, **settings)
    assert shard.x.shape == (4, 10, 2)
    assert shard.report["evaluations"] == 2 * 10 * 4 * 17
    assert shard.report["draws"] == 40
    assert torch.allclose(draw_shard(prior, obs, options, batch_size=6, **settings).x, shard.x, atol=1e-10)
    # screening: draws beyond the bound are replaced, the others do not change
    bound = float(shard.x.abs().amax(-1).median())
    screened = draw_shard(prior, obs, options, **{**settings, "bound": bound}, previous=lambda: torch.zeros(4, 10, 2))
    good = shard.x.abs().amax(-1) <= bound
    assert screened.report["rejected"] == int((~good).sum())
    assert torch.equal(screened.x[good], shard.x[good])
    assert float(screened.x.abs().max()) <= bound
    # a fraction: both draws of a set belong to the same observations
    renewed = draw_shard(
        prior, obs, options, **settings, previous=lambda: torch.zeros(4, 10, 2, dtype=DOUBLE), fresh=0.3
    )
    new = (renewed.x != 0).any(-1)
    assert new.sum(1).tolist() == [3, 3, 3, 3]
    assert torch.equal(new[0], new[1])
    assert torch.equal(new[2], new[3])
    with pytest.raises(ValueError, match="draws must be a multiple of the 2 picks"):
        EStep(sampler="tds", sampler_options={"picks": 2}, draws=3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"particles": 0}, "particles must be a positive integer, got 0"),
        ({"particles": 2.5}, "particles must be a positive integer, got 2.5"),
        ({"picks": 0}, "picks must be a positive integer, got 0"),
        ({"particles": 2, "picks": 3}, "picks must not exceed particles, got 3 picks from 2 particles"),
        ({"threshold": 1.5}, r"threshold must lie in \[0, 1\], got 1.5"),
        ({"order": 3}, "order must be 1 or 2, got 3"),
        ({"eta": 0.5}, "'tds' does not take these options.*eta"),
    ],
)
def test_bad_options_are_rejected(options, words):
    with pytest.raises(ValueError, match=words):
        gaussian().posterior(dense_observations()).sample(steps=2, sampler="tds", **options)
