"""Functions of AᵀΣ_y⁻¹A from products with A, against dense algebra."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from diffem import Observations, operators
from diffem.observations.information import explicit_information, information_of, matrix_free_information
from diffem.observations.krylov import Krylov
from diffem.operators.spectrum import determined_share
from diffem.posterior.correction import Correction
from diffem.priors.preconditioning import KrylovPreconditioning

from ..exact import gaussian_posterior_mean, random_covariance
from ..operators.registry import REGISTRY
from ..posterior.test_pivot import SIGMAS, N, information, observations

DOUBLE = torch.float64
FUNCTIONS = {
    "G": lambda g: g,
    "K at 0.5": lambda g: 1 / (1 + 0.25 * g),
    "C^½ at 40": lambda g: (40.0**-2 + g).rsqrt(),
    "(I + C)^-½ at 3": lambda g: (1 + 1 / (1 / 9 + g)).rsqrt(),
}


def complete(obs: Observations) -> Krylov:
    """Use as many products as a sample has numbers, which is exact."""
    return replace(matrix_free_information(obs), iterations=math.prod(obs.x_shape))


@pytest.mark.parametrize("name", REGISTRY)
def test_functions_of_the_information(name: str) -> None:
    obs, matrix, cov_y = observations(name)
    values, vectors = torch.linalg.eigh(information(matrix, cov_y))
    values = torch.where(values > 1e-12 * values.amax(1, keepdim=True), values, 0)
    x = torch.randn(N, *obs.x_shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(2))
    for function in FUNCTIONS.values():
        expected = vectors @ (function(values).unsqueeze(-1) * (vectors.mT @ x.flatten(1).unsqueeze(-1)))
        torch.testing.assert_close(
            complete(obs).combine((function, x)).flatten(1), expected.squeeze(-1), rtol=1e-8, atol=1e-8
        )


@pytest.mark.parametrize(
    ("name", "noise"),
    [
        *((name, "isotropic") for name in REGISTRY),
        *itertools.product(("dense", "mask each", "blur reflect each"), ("diagonal", "low rank")),
    ],
)
def test_the_correction_is_equivalent_to_the_pivot(name: str, noise: str) -> None:
    """s²x_t + t = (I + C)⁻¹ m, and denoising this m gives the exact posterior mean of x ~ N(μ, Σ)."""
    obs, matrix, cov_y = observations(name, noise)
    size, generator, scale = matrix.shape[-1], torch.Generator().manual_seed(7), 1.7
    pivot = Correction(obs, complete(obs).scaled(scale), scale)
    mean, cov = torch.randn(size, dtype=DOUBLE, generator=generator), random_covariance(size)
    z = torch.randn(N, size, dtype=DOUBLE, generator=generator)
    eye = torch.eye(size, dtype=DOUBLE)
    for sigma in SIGMAS:
        x_t = (mean + sigma * z).reshape(N, *obs.x_shape)
        seen = pivot.centre(x_t, torch.tensor(sigma, dtype=DOUBLE))
        assert torch.equal(seen[:, 0], x_t / scale * scale)
        linear = seen[:, 0] / (1 + (sigma / scale) ** 2) + seen[:, 1]
        C = torch.linalg.inv(eye / sigma**2 + information(matrix, cov_y))
        m = ((eye + C / scale**2) @ linear.flatten(1).unsqueeze(-1)).squeeze(-1)
        denoised = mean + (cov @ torch.linalg.solve(cov + C, (m - mean).unsqueeze(-1))).squeeze(-1)
        exact = gaussian_posterior_mean(mean, cov, x_t.flatten(1), sigma, obs.y.flatten(1), matrix, cov_y)
        torch.testing.assert_close(denoised, exact, rtol=1e-8, atol=1e-8)


def test_its_derivative_is_itself() -> None:
    obs, _, _ = observations("blur reflect each")
    x = torch.randn(N, *obs.x_shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(3), requires_grad=True)
    G, function = complete(obs), FUNCTIONS["K at 0.5"]
    weight = torch.randn(x.shape, dtype=DOUBLE, generator=torch.Generator().manual_seed(4))
    (gradient,) = torch.autograd.grad((weight * G.combine((function, x))).sum(), x)
    torch.testing.assert_close(gradient, G.combine((function, weight)))


def test_a_training_example_is_a_simulated_observation() -> None:
    """Each example has its own operator, and one measures nothing.

    The error is that of D, which is the ordinary denoiser if nothing is measured.
    """
    obs, matrix, cov_y = observations("dense")
    size, generator = matrix.shape[-1], torch.Generator().manual_seed(9)
    x, z, h = (torch.randn(N, *obs.x_shape, dtype=DOUBLE, generator=generator) for _ in range(3))
    level, known = torch.tensor([0.03, 0.7, 20.0], dtype=DOUBLE), torch.tensor([True, False, True])
    noise = KrylovPreconditioning(complete(obs).only(known), level)
    torch.manual_seed(5)
    seen = noise.corrupt(x, z)
    torch.manual_seed(5)
    y = obs.A(x) + 0.3 * torch.randn(obs.y.shape, dtype=DOUBLE)
    sigma = level.reshape(N, 1)
    x_t = x.flatten(1) + sigma * z.flatten(1)
    G = information(matrix, cov_y) * known[:, None, None]
    inverse = torch.linalg.inv((1 + 1 / sigma[..., None] ** 2) * torch.eye(size, dtype=DOUBLE) + G)  # B
    residual = (y.flatten(1) - (matrix @ (x_t / (1 + sigma**2)).unsqueeze(-1)).squeeze(-1)) * known[:, None]
    t = inverse @ (matrix.mT @ torch.linalg.solve(cov_y, residual.unsqueeze(-1)))
    torch.testing.assert_close(seen[:, 1].flatten(1), t.squeeze(-1))
    torch.testing.assert_close(seen[:, 0].flatten(1), x_t)

    out = (1 + 1 / sigma**2).sqrt() * (inverse @ h.flatten(1).unsqueeze(-1)).squeeze(-1)
    D = x_t / (1 + sigma**2) + t.squeeze(-1) + out
    torch.testing.assert_close(noise.output(seen, h).flatten(1), D)
    torch.testing.assert_close(noise.error(h, seen, x, z).flatten(1), (1 + 1 / sigma**2).sqrt() * (D - x.flatten(1)))
    ordinary = (x_t + sigma * (1 + sigma**2).sqrt() * h.flatten(1)) / (1 + sigma**2)
    torch.testing.assert_close(noise.output(seen, h).flatten(1)[1], ordinary[1])


def test_unmeasured_observations_carry_no_information() -> None:
    obs, _, _ = observations("dense")
    G = matrix_free_information(obs).only(torch.zeros(N, dtype=torch.bool))
    x = torch.randn(N, *obs.x_shape, dtype=DOUBLE)
    assert torch.equal(G.combine((determined_share(3.0), x)), torch.zeros_like(x))
    assert torch.equal(G.solve(obs.y, torch.tensor(1.0)), torch.zeros_like(x))
    assert all(len(numbers) == 0 for numbers in G.extent())


def test_extent_agrees_with_the_eigenvalues() -> None:
    obs, _, _ = observations("dense")
    shares, noises = complete(obs).extent()
    expected_shares, expected_noises = explicit_information(obs).extent()
    torch.testing.assert_close(noises, expected_noises)
    size = math.prod(obs.x_shape)
    assert (shares - expected_shares).abs().max() < 4 / size**0.5  # the variance of one probe of ±1 is at most 2/N


# With gains from 0 to 1/σ_y² = 100 the error of k products is at most 2√κ ((√κ − 1)/(√κ + 1))ᵏ = 0.034 for κ = 101 and
# k = 32. The rows of the bicubic reduction are nearly orthogonal, so only rounding errors remain there.
LARGE = {
    "reduced by two": (operators.Downsample(2), (1, 24, 24), 1e-5),
    "blur that ends at the border": (operators.Blur(torch.ones(3, 3) / 9, boundary="reflect"), (24, 24), 2e-2),
}


@pytest.mark.parametrize("name", LARGE)
def test_few_products_suffice_for_images(name: str) -> None:
    """t in float32 with 32 products against dense algebra in float64, at any noise level."""
    A, shape, tolerance = LARGE[name]
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, *shape, generator=generator)
    y = A(x)
    obs = Observations(y + 0.1 * torch.randn(y.shape, generator=generator), A, sigma=0.1)
    G, exact = information_of(obs), obs.to(dtype=DOUBLE)
    assert isinstance(G, Krylov)
    dense = explicit_information(exact)
    for sigma in (0.02, 0.5, 30.0):
        x_t = x + sigma * torch.randn(x.shape, generator=generator)
        linear = x_t.double() / (1 + sigma**2)
        push = exact.A.adjoint(exact.noise.solve(exact.y - exact.A(linear)))
        t = dense.combine((lambda g, sigma=sigma: 1 / (1 + sigma**-2 + g), push))
        found = Correction(obs, G, 1.0).centre(x_t, torch.tensor(sigma))[:, 1]
        assert (found - t).norm() < tolerance * t.norm(), (sigma, float((found - t).norm() / t.norm()))
