"""The pivot: x_t and y combined to one Gaussian observation of x, for every operator, against dense algebra."""

from __future__ import annotations

import math

import pytest
import torch

from diffem import InputError, Observations, operators, priors
from diffem.linalg import Diagonal, LowRank
from diffem.observations.information import information_of
from diffem.posterior import IsotropicInformation, Pivot

from ..exact import gaussian_posterior_mean, matrix_of, random_covariance
from ..operators.registry import REGISTRY

N = 3
SIGMAS = [1e-3, 3e-2, 0.5, 4.0, 1e2]
DIAGONAL = {  # configurations whose information is diagonal in a known basis
    "identity", "mask", "mask each", "mask each, channels together", "crop", "crop each", "crop of two channels",
    "blur circular", "fourier, real image", "fourier, columns", "fourier, everything", "fourier each, complex image",
    "fourier, odd sizes, channel", "fourier each, two channels",
}  # fmt: skip


def observations(name: str, noise: str = "isotropic") -> tuple[Observations, torch.Tensor, torch.Tensor]:
    """Observations, their matrices `(N, m, size)` and noise covariances `(N, m, m)`."""
    make, x_shape = REGISTRY[name]
    A, generator = make(N), torch.Generator().manual_seed(5)
    y = A(torch.randn(N, *x_shape, generator=generator, dtype=torch.float64))
    y = y + 0.3 * torch.randn(y.shape, generator=generator, dtype=torch.float64)
    size = math.prod(y.shape[1:])
    if noise == "isotropic":
        obs, cov = Observations(y, A, sigma=0.3), 0.09 * torch.eye(size, dtype=torch.float64)
    else:
        variances = 0.05 + torch.rand(y.shape[1:], generator=generator, dtype=torch.float64)
        factor = torch.randn(2, *y.shape[1:], generator=generator, dtype=torch.float64)
        flat, cov = factor.flatten(1), variances.flatten().diag()
        if noise == "diagonal":
            obs = Observations(y, A, cov=Diagonal(variances))
        else:
            obs, cov = Observations(y, A, cov=LowRank(factor, variances)), cov + flat.T @ flat
    measured = obs.measured
    inside = torch.ones(N, size, dtype=torch.bool) if measured is None else measured.expand_as(y).flatten(1)
    # unmeasured entries have a zero row in A: their variance is arbitrary, but they are uncorrelated with measured
    # entries
    both = inside.unsqueeze(2) & inside.unsqueeze(1)
    return obs, matrix_of(A, x_shape, N), torch.where(both, cov, torch.eye(size, dtype=torch.float64))


def information(matrix: torch.Tensor, cov_y: torch.Tensor) -> torch.Tensor:
    return matrix.mT @ torch.linalg.solve(cov_y, matrix)


@pytest.mark.parametrize("name", REGISTRY)
def test_the_spectrum_is_the_information(name: str) -> None:
    obs, matrix, cov_y = observations(name)
    spectrum = obs.information()
    assert (spectrum is not None) == (name in DIAGONAL)
    if spectrum is None:
        return
    G, size = information(matrix, cov_y), matrix.shape[-1]
    for e in torch.eye(size, dtype=torch.float64):
        x = e.reshape(1, *obs.x_shape).expand(N, *obs.x_shape)
        torch.testing.assert_close(spectrum.combine((lambda g: g, x)).flatten(1), G @ e, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("noise", ["isotropic", "diagonal", "low rank"])
@pytest.mark.parametrize("name", REGISTRY)
def test_denoising_the_pivot_is_the_exact_posterior_mean(name: str, noise: str) -> None:
    """μ + Σ (Σ + σ²K)⁻¹ (m − μ) = E[x | x_t, y] for x ~ N(μ, Σ), to the accuracy of the solves in float64."""
    obs, matrix, cov_y = observations(name, noise)
    information, size = information_of(obs), matrix.shape[-1]
    assert information is not None
    pivot, generator = Pivot(obs, information), torch.Generator().manual_seed(7)
    mean, cov = torch.randn(size, dtype=torch.float64, generator=generator), random_covariance(size)
    z = torch.randn(N, size, dtype=torch.float64, generator=generator)
    eye = torch.eye(size, dtype=torch.float64).reshape(size, 1, *obs.x_shape).expand(size, N, *obs.x_shape)
    for sigma in SIGMAS:
        x_t, level = (mean + sigma * z).reshape(N, *obs.x_shape), torch.tensor(sigma, dtype=torch.float64)
        K = torch.stack([pivot.unknown(e, level).flatten(1) for e in eye], -1)
        m = pivot.centre(x_t, level).flatten(1)
        denoised = mean + (cov @ torch.linalg.solve(cov + sigma**2 * K, (m - mean).unsqueeze(-1))).squeeze(-1)
        exact = gaussian_posterior_mean(mean, cov, x_t.flatten(1), sigma, obs.y.flatten(1), matrix, cov_y)
        torch.testing.assert_close(denoised, exact, rtol=1e-8, atol=1e-8)


def mixture() -> priors.MixturePrior:
    generator = torch.Generator().manual_seed(0)
    means = torch.randn(4, 5, 8, dtype=torch.float64, generator=generator)
    weights, stds = (0.2 + torch.rand(4, dtype=torch.float64, generator=generator) for _ in range(2))
    return priors.MixturePrior(weights, means, stds)


@pytest.mark.parametrize("A", [operators.Identity(), operators.Fourier()], ids=["identity", "all of k-space"])
def test_one_pass_is_exact_for_every_prior(A: operators.Operator) -> None:
    """A mixture, whose posterior mean is computed by dense algebra, with separate noise levels of the observations."""
    prior, generator = mixture(), torch.Generator().manual_seed(1)
    x = prior.means[:3] + 0.3 * torch.randn(3, 5, 8, dtype=torch.float64, generator=generator)
    y = A(x)
    y = y + 0.2 * torch.randn(y.shape, dtype=torch.float64, generator=generator)
    obs = Observations(y, A, sigma=torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64))
    reference = prior.posterior(obs, method="exact")  # dense algebra
    one_pass = IsotropicInformation(prior, obs)
    for sigma in SIGMAS:
        x_t = x + sigma * torch.randn(x.shape, dtype=torch.float64, generator=generator)
        torch.testing.assert_close(one_pass(x_t, sigma), reference(x_t, sigma), rtol=1e-8, atol=1e-8)
        each = torch.tensor([sigma, 2 * sigma, 3 * sigma], dtype=torch.float64)
        torch.testing.assert_close(one_pass(x_t, each), reference(x_t, each), rtol=1e-8, atol=1e-8)


def test_it_costs_one_forward_and_no_vjp() -> None:
    class Counted(priors.GaussianPrior):
        calls = 0

        def denoise(self, x_t: torch.Tensor, sigma: torch.Tensor) -> torch.Tensor:
            type(self).calls += 1
            assert not x_t.requires_grad
            return super().denoise(x_t, sigma)

    prior = Counted(torch.zeros(4), torch.eye(4))
    posterior = IsotropicInformation(prior, Observations(torch.randn(6, 4), operators.Identity(), sigma=0.5))
    _, stats = posterior.sample(steps=8, return_stats=True)
    assert Counted.calls == 9
    assert (stats.forwards == 9).all()
    assert (stats.vjps == 0).all()


def test_exact_draws_of_noisy_samples_follow_the_posterior() -> None:
    prior = priors.GaussianPrior(torch.zeros(2).double(), torch.tensor([[1.0, 0.6], [0.6, 1.0]]).double())
    obs = Observations(torch.tensor([[1.0, -0.5]]).double(), operators.Identity(), sigma=0.7)
    x = IsotropicInformation(prior, obs).sample(4000, steps=64)[:, 0]
    total = prior.covariance().matrix()[0] + 0.49 * torch.eye(2)  # type: ignore[attr-defined]
    cov = 0.49 * torch.linalg.solve(total, prior.covariance().matrix()[0])  # type: ignore[attr-defined]
    # 4000 draws: means to .016 sd, variances to 2.2 %; the sampler adds less than 1 %
    torch.testing.assert_close(x.mean(0), prior.posterior_mean(obs)[0], rtol=0, atol=0.04)
    torch.testing.assert_close(x.T.cov(), cov, rtol=0.1, atol=0.02)


def test_unsupported_observations_are_named_in_an_error() -> None:
    prior = priors.GaussianPrior(torch.zeros(4), torch.eye(4))
    masked = Observations(torch.zeros(2, 4), operators.Mask(torch.tensor([True, True, False, True])), sigma=0.1)
    with pytest.raises(InputError, match="proportional to the identity"):
        IsotropicInformation(prior, masked)
    whole = Observations(torch.zeros(2, 4), operators.Identity(), sigma=0.1)
    with pytest.raises(InputError, match="particles"):
        IsotropicInformation(prior, whole).sample(sampler="tds")


def test_measured_pixels_have_the_precision_of_y_at_every_noise_level() -> None:
    """In float32 with noise 1e-5, they are within 0.1 standard deviations of y, also where x_t is about 100."""
    generator = torch.Generator().manual_seed(0)
    A, x = operators.Mask(torch.tensor([True, False]).repeat(32)), torch.randn(4, 64, generator=generator)
    obs = Observations(A(x), A, sigma=1e-5)
    pivot = Pivot(obs, information_of(obs, exact=True))
    for sigma in SIGMAS:
        m = pivot.centre(x + sigma * torch.randn(4, 64, generator=generator), torch.tensor(sigma))
        assert (A(m) - A(x)).abs().max() < 1e-6


def test_an_ill_conditioned_matrix_is_resolved_in_float32() -> None:
    """Singular values over three decades, noise 1e-5: the values that y gives are within a standard deviation."""
    generator = torch.Generator().manual_seed(0)
    scales = torch.logspace(0, -3, 20, dtype=torch.float64).unsqueeze(1)
    A = operators.Dense(scales * torch.randn(4, 20, 64, generator=generator, dtype=torch.float64))
    x = torch.randn(4, 64, generator=generator, dtype=torch.float64)
    obs = Observations(A(x).float(), A.to(dtype=torch.float32), sigma=1e-5)
    rounded_obs = obs.to(dtype=torch.float64)  # the same numbers
    x_t = (x + 0.01 * torch.randn(4, 64, generator=generator, dtype=torch.float64)).float()
    m = Pivot(obs, information_of(obs, exact=True)).centre(x_t, torch.tensor(0.01))
    exact = information_of(rounded_obs)
    reference = Pivot(rounded_obs, exact).centre(x_t.double(), torch.tensor(0.01, dtype=torch.float64))
    distance = exact.combine((lambda g: (g + 1e4).sqrt(), m - reference))  # in posterior standard deviations
    assert distance.abs().max() < 1
