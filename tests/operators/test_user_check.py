"""Observations reject operators of the user that are not linear, mix samples, or have a wrong adjoint."""

import pytest
import torch

from diffem import Observations, operators
from diffem.core.errors import InputError
from diffem.operators.user_check import is_user_defined

Y = torch.arange(12.0).reshape(4, 3)


class Doubled(operators.Operator):
    """2x, with a factor of its adjoint that may be wrong."""

    def __init__(self, adjoint_factor: float) -> None:
        super().__init__()
        self.adjoint_factor = adjoint_factor

    def _forward(self, x):
        return 2 * x

    def _adjoint(self, y):
        return self.adjoint_factor * y


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (torch.square, "not linear"),
        (lambda x: x + 1, "not linear.*Subtract a constant part"),
        (torch.relu, "not linear.*Channel"),
        (lambda x: torch.nan * x, "not linear"),
        (lambda x: x + x.mean(0), "mixes samples"),
        (lambda x: x.cumsum(0), "mixes samples"),
    ],
)
def test_functions_that_are_no_linear_operators(function, words):
    A = operators.Function(function, (3,))
    for nested in (A, operators.Compose(operators.Mask(torch.ones(4, 3).bool()), A)):
        with pytest.raises(InputError, match=words):
            Observations(Y, nested, sigma=0.1)


def test_a_wrong_adjoint_is_rejected():
    assert len(Observations(Y, Doubled(2.0), sigma=0.1)) == 4
    with pytest.raises(InputError, match="wrong adjoint"):
        Observations(Y, Doubled(3.0), sigma=0.1)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_linear_functions_pass(n, dtype):
    kernel = torch.rand(n, 3)  # float32, also for float64 data
    A = operators.Function(lambda x, kernel: (kernel * x).cumsum(1), (3,), kernel=kernel.to(dtype))
    assert Observations(Y[:n].to(dtype), A, sigma=0.1).x_shape == (3,)
    assert len(Observations(Y[:n].to(dtype), operators.Function(lambda x: 0 * x, (3,)), sigma=0.1)) == n


def test_operators_of_the_library_are_not_evaluated_again():
    assert not is_user_defined(operators.Compose(operators.Mask(Y > 0), operators.Dense(torch.eye(3))))


@pytest.mark.parametrize(
    "make",
    [
        lambda bad: operators.Dense(bad),
        lambda bad: operators.Blur(bad),
        lambda bad: operators.Fourier(coils=bad.expand(2, 3, 3).unsqueeze(-1).repeat(1, 1, 1, 2)),
    ],
)
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_parameters_that_are_not_finite(make, number):
    with pytest.raises(InputError, match="must be finite"):
        make(torch.full((3, 3), number))
