"""Posteriors do not depend on the units of x and y, far beyond those of SI (magnetic fields of a brain: 1e-13 T)."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.core.errors import InputError
from diffem.linalg import SOLVERS, DenseCovariance
from diffem.nn import MLP
from diffem.nn.networks import make_network

from ..exact import random_covariance

METHODS = [
    ("mmps", {"solver": "cg"}),
    ("mmps", {"solver": "gmres"}),
    ("mmps", {"solver": "bicgstab"}),
    ("mmps", {"solver": "direct"}),
    ("sigma_x", {}),
    ("sigma_t", {}),
    ("identity", {}),
    ("tmpd", {}),
    ("pigdm", {}),
    ("dps", {}),
    ("diffpir", {}),
]


def draws(unit, method, options, equal, sampler):
    generator = torch.Generator().manual_seed(0)
    mask, x = torch.rand(3, 8, generator=generator) < 0.7, torch.randn(3, 8, generator=generator)
    torch.manual_seed(0)
    cov = DenseCovariance(random_covariance(8).float())
    prior = priors.DiffusionPrior(MLP((8,), (16,)), scale=unit, cov=cov.scaled(unit))
    sigma = 0.1 if equal else 0.05 + torch.rand(3, 8, generator=generator)
    obs = Observations(unit * x, operators.Mask(mask), sigma=unit * sigma)
    return prior.posterior(obs, method, **options).sample(steps=4, **sampler) / unit


@pytest.mark.parametrize(("method", "options"), METHODS)
@pytest.mark.parametrize("equal", [True, False])
def test_draws_do_not_depend_on_the_unit(method, options, equal):
    sampler = {"sampler": "tds", "particles": 2} if options.get("solver") in ("cg", "direct") else {}
    ordinary = draws(1.0, method, options, equal, sampler)
    for unit in (2.0**-50, 2.0**-20, 2.0**50):
        # not bit for bit: variances of the noise are rounded differently in other units, and ill-conditioned solves
        # amplify that in float32; without the unit of the solves, draws were off by 0.2 and more
        assert torch.allclose(draws(unit, method, options, equal, sampler), ordinary, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", ["ddpm2", "tds"])
def test_draws_with_a_gaussian_prior_do_not_depend_on_the_unit(sampler):
    cov = DenseCovariance(random_covariance(8).float())
    y = torch.randn(3, 8, generator=torch.Generator().manual_seed(0))
    blur = operators.Dense(torch.eye(8) + 0.3)
    found = []
    for unit in (1.0, 2.0**-50, 2.0**50):
        prior = priors.GaussianPrior(torch.zeros(8), cov.scaled(unit))
        found.append(prior.posterior(Observations(unit * y, blur, sigma=unit * 0.1)).sample(steps=4, sampler=sampler))
    assert torch.allclose(found[1] * 2.0**50, found[0], rtol=1e-4, atol=1e-4)
    assert torch.allclose(found[2] / 2.0**50, found[0], rtol=1e-4, atol=1e-4)


def test_units_whose_squares_overflow_are_refused():
    prior = priors.MixturePrior(torch.ones(1), torch.zeros(1, 2), torch.full((1,), 1e17))
    posterior = prior.posterior(Observations(torch.full((1, 2), 1e17), operators.Identity(), sigma=1e17), "mmps")
    with pytest.raises(InputError, match="use other units of x, or float64"):
        posterior.sample(steps=2)


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    network = make_network("mlp", (6,), {"hidden": [16]})
    for p in network.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return network.eval()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("x_unit", "y_unit"), [(2.0**-50, 2.0**-50), (2.0**-27, 2.0**-44), (1.0, 2.0**40)])
def test_draws_do_not_depend_on_the_units_of_x_and_y(network, solver, x_unit, y_unit):
    generator = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(8, 4, 6, generator=generator), torch.randn(8, 6, generator=generator)

    def draws(x_unit, y_unit):
        A = operators.Dense(matrix * (y_unit / x_unit))
        sigmas = {"sigma_min": 0.01 * x_unit, "sigma_max": 20 * x_unit}
        prior = priors.DiffusionPrior(network, mean=torch.zeros(6), scale=x_unit, **sigmas)
        obs = Observations(A(x_unit * x), A, sigma=0.1 * y_unit)
        return prior.posterior(obs, method="mmps", solver=solver, iterations=3).sample(2, steps=4) / x_unit

    assert torch.equal(draws(x_unit, y_unit), draws(1.0, 1.0))
