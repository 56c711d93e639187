"""Draws do not depend on the units of x and y, far beyond those of SI (magnetic fields of the brain are 1e-13 T)."""

import pytest
import torch

from diffem import Observations, operators, priors
from diffem.linalg import SOLVERS
from diffem.nn.networks import make_network


@pytest.fixture(scope="module")
def network() -> torch.nn.Module:
    torch.manual_seed(0)
    network = make_network("mlp", (6,), {"hidden": [16]})
    for p in network.parameters():
        p.data += 0.1 * torch.randn_like(p)
    return network.eval()


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize(("x_unit", "y_unit"), [(2.0**-50, 2.0**-50), (2.0**-27, 2.0**-44), (1.0, 2.0**40)])
def test_draws_do_not_depend_on_the_units(network, solver, x_unit, y_unit):
    generator = torch.Generator().manual_seed(0)
    matrix, x = torch.randn(8, 4, 6, generator=generator), torch.randn(8, 6, generator=generator)

    def draws(x_unit, y_unit):
        A = operators.Dense(matrix * (y_unit / x_unit))
        sigmas = {"sigma_min": 0.01 * x_unit, "sigma_max": 20 * x_unit}
        prior = priors.DiffusionPrior(network, mean=torch.zeros(6), scale=x_unit, **sigmas)
        obs = Observations(A(x_unit * x), A, sigma=0.1 * y_unit)
        return prior.posterior(obs, method="mmps", solver=solver, iterations=3).sample(2, steps=4) / x_unit

    assert torch.equal(draws(x_unit, y_unit), draws(1.0, 1.0))
