"""Priors as denoisers: closed forms, Tweedie's identities, shapes and errors."""

import math
import typing

import pytest
import torch
from torch import nn

from diffem import Observations, operators, priors
from diffem.linalg import DenseCovariance, Diagonal, Isotropic, LowRank
from diffem.nn import MLP, reference_embedding
from diffem.priors.files import load_prior, save_prior
from diffem.priors.methods import ConditionedPrior

from ..exact import random_covariance

EVENT, SIZE = (2, 3), 6


def mixture():
    generator = torch.Generator().manual_seed(0)
    return priors.MixturePrior(
        torch.rand(4, generator=generator, dtype=torch.float64) + 0.1,
        torch.randn(4, *EVENT, generator=generator, dtype=torch.float64),
        torch.rand(4, generator=generator, dtype=torch.float64) + 0.2,
    )


def gaussian(cov):
    return priors.GaussianPrior(torch.linspace(-1, 1, SIZE, dtype=torch.float64).reshape(EVENT), cov)


PRIORS = {
    "isotropic": lambda: gaussian(Isotropic(torch.tensor(0.7, dtype=torch.float64))),
    "diagonal": lambda: gaussian(Diagonal(torch.rand(EVENT, dtype=torch.float64) + 0.2)),
    "low rank": lambda: gaussian(LowRank(torch.randn(2, *EVENT, dtype=torch.float64), 0.3)),
    "dense": lambda: gaussian(random_covariance(SIZE)),
    "mixture": mixture,
}


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("sigma", [0.05, 1.0, 20.0])
def test_mean_and_covariance_obey_tweedies_formula(name, sigma):
    """x̂ = x_t + σ² ∇log p(x_t), with p(x_t) written independently: the mean and, by its Jacobian, the covariance."""
    prior = PRIORS[name]()
    x_t = torch.randn(3, *EVENT, dtype=torch.float64, requires_grad=True)
    if name == "mixture":
        log_p = prior.log_prob(x_t, sigma)
    else:
        cov = prior.covariance()
        eye = torch.eye(SIZE, dtype=torch.float64)
        matrix = torch.stack([cov.matvec(e.reshape(1, *EVENT)).flatten() for e in eye]) + sigma**2 * eye
        log_p = torch.distributions.MultivariateNormal(prior.mean.flatten(), matrix).log_prob(x_t.flatten(1))
    (score,) = torch.autograd.grad(log_p.sum(), x_t)
    assert torch.allclose(prior(x_t, sigma), x_t + sigma**2 * score, atol=1e-9 * max(1, sigma**2))


def test_mixture_covariance_is_the_jacobian():
    prior = mixture()
    x_t = torch.randn(3, *EVENT, dtype=torch.float64)
    for sigma in (0.1, 1.0, 5.0):
        for i in range(3):
            jacobian = torch.autograd.functional.jacobian(lambda v, s=sigma: prior(v[None], s)[0], x_t[i])
            assert torch.allclose(
                prior.covariance_at(x_t, sigma)[i], sigma**2 * jacobian.reshape(SIZE, SIZE), atol=1e-9
            )


def test_a_mixture_far_from_the_origin_is_the_same_mixture_moved():
    generator = torch.Generator().manual_seed(0)
    weights, stds = torch.tensor([0.2, 0.3, 0.5]).double(), torch.tensor([0.01, 0.1, 0.3]).double()
    means = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    x_t = means[[0, 1, 2, 0, 1, 2]] + 0.05 * torch.randn(6, 4, generator=generator, dtype=torch.float64)
    here = priors.MixturePrior(weights, means, stds)
    far = priors.MixturePrior(weights, means + 2**26, stds)
    for sigma in (1e-3, 1e-2, 0.1, 1.0):
        # float64 resolves 1.5e-8 at 2²⁶
        assert torch.allclose(far(x_t + 2**26, sigma) - 2**26, here(x_t, sigma), rtol=0, atol=1e-6)


def test_a_mixture_keeps_its_own_copy_of_its_arguments():
    given = torch.ones(2), torch.eye(2), torch.ones(2)
    prior = priors.MixturePrior(*given)
    before = prior(torch.ones(1, 2), 0.5)
    for tensor in given:
        tensor.mul_(3)
    assert torch.equal(prior(torch.ones(1, 2), 0.5), before)


def test_moments_of_exact_draws():
    prior, n = mixture(), 200_000
    x = prior.exact_sample(torch.rand(n), torch.randn(n, *EVENT, dtype=torch.float64)).flatten(1)
    cov = prior.covariance().matrix()[0]
    assert ((x.mean(0) - prior.mean.flatten()).abs() < 5 * (cov.diagonal() / n).sqrt()).all()
    assert float((torch.cov(x.T) - cov).norm() / cov.norm()) < 0.02
    g = PRIORS["low rank"]()
    z = g.exact_sample(torch.randn(n, *EVENT, dtype=torch.float64)).flatten(1)
    u = g.covariance()._tensors["factor"].flatten(1)
    expected = u.T @ u + 0.3 * torch.eye(SIZE)
    assert float((torch.cov(z.T) - expected).norm() / expected.norm()) < 0.02


@pytest.mark.parametrize("name", PRIORS)
def test_sigma_may_be_a_number_a_tensor_or_one_per_sample(name):
    prior = PRIORS[name]()
    x_t = torch.randn(3, *EVENT, dtype=torch.float64)
    sigmas = torch.tensor([0.1, 1.0, 10.0], dtype=torch.float64)
    each = prior(x_t, sigmas)
    for i, sigma in enumerate(sigmas):
        assert torch.allclose(prior(x_t[i : i + 1], float(sigma))[0], each[i], atol=1e-12)
        assert torch.allclose(prior(x_t[i : i + 1], sigma)[0], each[i], atol=1e-12)


@pytest.mark.parametrize("name", PRIORS)
def test_priors_agree_in_float32(name):
    prior = PRIORS[name]()
    x_t = torch.randn(3, *EVENT, dtype=torch.float64)
    expected = prior(x_t, 0.5)
    assert torch.allclose(prior.float()(x_t.float(), 0.5).double(), expected, atol=1e-5)


def test_a_moved_gaussian_gives_the_same_draws_from_its_file(tmp_path):
    prior = priors.GaussianPrior(torch.zeros(SIZE, dtype=torch.float64), random_covariance(SIZE, 3)).float()
    save_prior(prior, tmp_path / "prior.safetensors")
    loaded = load_prior(tmp_path / "prior.safetensors")
    assert loaded.scale == prior.scale
    assert torch.equal(loaded.sample(4, steps=4, sampler="ddpm2"), prior.sample(4, steps=4, sampler="ddpm2"))


class TestDiffusion:
    def test_a_network_is_preconditioned(self):
        class Constant(nn.Module):
            def forward(self, x, log_sigma):
                assert log_sigma.shape == (len(x),)
                return 2 * x + log_sigma[:, None, None]

        prior = priors.DiffusionPrior(Constant(), EVENT)
        x_t, sigma = torch.randn(3, *EVENT), torch.tensor([0.1, 1.0, 10.0])
        s = sigma[:, None, None]
        h = 2 * x_t / (s**2 + 1).sqrt() + s.log()
        expected = x_t / (s**2 + 1) + s / (s**2 + 1).sqrt() * h
        assert torch.allclose(prior(x_t, sigma), expected, atol=1e-6)

    def test_the_papers_network_has_its_number_of_parameters(self):
        network = MLP((5,))
        assert sum(p.numel() for p in network.parameters()) == 150_789

    def test_event_shape_comes_from_the_network_the_mean_or_the_caller(self):
        assert priors.DiffusionPrior(MLP((2, 3))).event_shape == (2, 3)
        assert priors.DiffusionPrior(nn.Identity(), mean=torch.zeros(4)).event_shape == (4,)
        with pytest.raises(ValueError, match="event_shape"):
            priors.DiffusionPrior(nn.Linear(2, 2))
        with pytest.raises(ValueError, match=r"\(3,\).*\(4,\)"):
            priors.DiffusionPrior(nn.Identity(), (3,), mean=torch.zeros(4))

    def test_sampling_starts_at_the_mean(self):
        # D(x_t) ≈ x_t at tiny σ and 0 at large σ, so the start is visible only through the mean
        class Frozen(nn.Module):
            def forward(self, x, log_sigma):
                return torch.zeros_like(x)

        prior = priors.DiffusionPrior(Frozen(), mean=torch.full((2,), 50.0), sigma_max=1e-2)
        x = prior.sample(64, steps=8)
        assert (x.mean(0) - 50).abs().max() < 0.1

    def test_the_embedding_distinguishes_noise_levels(self):
        """Mean distance between embeddings of log σ that differ by 0.2, compared with the reference's frequencies."""
        log_sigma = torch.arange(-7, 4.6, 0.2)
        from diffem.nn import NoiseEmbedding

        ours, theirs = (e(log_sigma).diff(dim=0).norm(dim=1).mean() for e in (NoiseEmbedding(), reference_embedding()))
        assert ours > 3 * theirs


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: priors.GaussianPrior(torch.zeros(3), torch.eye(4)), r"\(3, 3\).*\(4, 4\)"),
        (lambda: priors.GaussianPrior(torch.zeros(3), torch.eye(3, dtype=torch.float64)), "float64.*float32"),
        (lambda: priors.GaussianPrior(torch.zeros(3), Isotropic(torch.ones(2))), "shared"),
        (lambda: priors.GaussianPrior(torch.full((3,), torch.nan), torch.eye(3)), "the mean must be finite, got 3 NaN"),
        (lambda: priors.MixturePrior(torch.ones(2), torch.zeros(3, 2), torch.ones(2)), r"\(3, 2\)"),
        (lambda: priors.MixturePrior(torch.ones(2), torch.zeros(2, 2), torch.tensor([1.0, 0.0])), "positive"),
        (lambda: priors.DiffusionPrior(lambda x, s: x, (2,)), "torch.nn.Module"),
        (lambda: priors.DiffusionPrior(nn.Identity(), (2,), sigma_min=2, sigma_max=1), "0 < sigma_min < sigma_max"),
        (
            lambda: gaussian(DenseCovariance(random_covariance(SIZE)))(torch.zeros(2, 6, dtype=torch.float64), 1.0),
            r"\(2, 3\)",
        ),
        (lambda: gaussian(DenseCovariance(random_covariance(SIZE)))(torch.zeros(2, 2, 3), 1.0), "float32.*float64"),
        (lambda: mixture()(torch.zeros(2, *EVENT, dtype=torch.float64), -1.0), "sigma must be positive"),
    ],
)
def test_bad_input_is_rejected(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_a_covariance_from_a_number_takes_the_dtype_of_the_mean():
    for dtype in (torch.float32, torch.float64):
        prior = priors.GaussianPrior(torch.zeros(3, dtype=dtype), Isotropic(2.0))
        assert prior.covariance().diagonal((3,)).dtype == prior.sample(1).dtype == dtype


def test_exact_draws_of_a_mask_with_little_noise_in_float32():
    """Eigenvalues over eight decades and noise of 1e-3: draws still explain the measured values at χ² = 1 per value."""
    generator = torch.Generator().manual_seed(0)
    size, n = 192, 16
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    root = basis * torch.logspace(3, -5, size, dtype=torch.float64).sqrt()
    mask = torch.rand(n, size, generator=generator) < 0.25
    x = torch.randn(n, size, generator=generator, dtype=torch.float64) @ root.T
    y = x + 1e-3 * torch.randn(n, size, generator=generator, dtype=torch.float64)
    obs = Observations(y.float(), operators.Mask(mask), sigma=1e-3)
    prior = priors.GaussianPrior(torch.zeros(size), (root @ root.T).float())
    chi2 = obs.chi2(prior.draw_posterior(obs))
    assert (chi2 - 1).abs().mean() < 4 * math.sqrt(2 / (0.25 * size))  # spread of χ² over this number of values


def test_type_checkers_know_that_draws_are_tensors():
    """`py.typed` promises types; `prior.posterior(obs).sample()` is the most common call."""
    plain, counted = typing.get_overloads(ConditionedPrior.sample)
    assert (plain.__annotations__["return"], counted.__annotations__["return"]) == ("Tensor", "tuple[Tensor, Any]")


def test_samples_of_a_prior_are_not_picked_from_sets_of_particles():
    prior = priors.MixturePrior(torch.ones(1), torch.zeros(1, 2), torch.ones(1))
    with pytest.raises(ValueError, match="picks is for posterior draws"):
        prior.sample(4, sampler="tds", particles=4, picks=2)
