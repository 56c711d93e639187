"""Operators with parameters to learn: values, groups, derivatives, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from diffem import InputError, Observations, operators
from diffem.operators.learned import derivatives, is_learned, learned_parameters, positions, with_values


def powers(x, width, scale):
    """(width·scale)² x for the first half of the entries, width·scale·x for the others; linear in x."""
    factor = width * scale
    while factor.ndim < x.ndim:
        factor = factor.unsqueeze(-1)
    half = x.shape[-1] // 2
    return torch.cat([factor**2 * x[..., :half], factor * x[..., half:]], -1)


def test_the_derivative_by_a_shared_parameter_is_exact():
    x, scale = torch.randn(5, 4, dtype=torch.float64), torch.rand(5, dtype=torch.float64) + 0.5
    A = operators.Function(powers, (4,), scale=scale, learn={"width": 1.5})
    y, (found,) = derivatives(A, x)
    s = scale[:, None]
    torch.testing.assert_close(y, torch.cat([(1.5 * s) ** 2 * x[:, :2], 1.5 * s * x[:, 2:]], 1))
    torch.testing.assert_close(found, torch.cat([3 * s**2 * x[:, :2], s * x[:, 2:]], 1))
    assert torch.equal(positions(A, 5), torch.zeros(5, 1, dtype=torch.int64))


def test_a_parameter_per_group_reaches_the_observations_of_its_group():
    x, labels = torch.randn(4, 2), torch.tensor([2, 0, 2, 1])
    A = operators.Function(lambda x, gain: gain[:, None] * x, (2,), learn={"gain": 1.0}, groups=labels)
    known = with_values(A, {"gain": torch.tensor([2.0, 3.0, 5.0])})
    expected = torch.tensor([5.0, 2.0, 5.0, 3.0])[:, None] * x
    torch.testing.assert_close(known(x), expected)
    torch.testing.assert_close(known[1:3](x[1:3]), expected[1:3])
    assert not is_learned(known)
    _, (found,) = derivatives(A, x)
    torch.testing.assert_close(found, x)
    assert positions(A, 4).flatten().tolist() == [2, 0, 2, 1]


def test_parts_of_an_operator_share_a_parameter_of_the_same_name():
    parts = [operators.Function(lambda x, g: g * x, (3,), learn={"g": 2.0}) for _ in range(2)]
    A = operators.Mask(torch.tensor([True, True, False])) @ operators.Compose(*parts)
    assert list(learned_parameters(A)) == ["g"]
    x = torch.ones(1, 3)
    assert A(x).tolist() == [[4, 4, 0]]
    assert with_values(A, {"g": torch.tensor(3.0)})(x).tolist() == [[9, 9, 0]]
    assert derivatives(A, x)[1][0].tolist() == [[4, 4, 0]]  # of g²
    other = operators.Function(lambda x, g: g * x, (3,), learn={"g": 1.0})
    with pytest.raises(InputError, match="rename one of them"):
        learned_parameters(operators.Compose(parts[0], other))


def test_learned_values_are_kept_exactly_whatever_the_precision_of_the_data():
    A = operators.Function(lambda x, g: g * x, (3,), learn={"g": 1.3})
    for dtype in (torch.float32, torch.float64):
        assert A(torch.ones(1, 3, dtype=dtype)).dtype == dtype
        Observations(torch.ones(2, 3, dtype=dtype), A, sigma=0.1)
    assert learned_parameters(A.to(torch.float32))["g"].value.item() == 1.3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learn": {"g": "wide"}}, "number or an array|real and finite"),
        ({"learn": {"g": np.nan}}, "real and finite"),
        ({"learn": {"g": 1j}}, "real and finite"),
        ({"learn": ["g"]}, "must map names"),
        ({"learn": {"g": 1.0}, "g": 2.0}, "both as a known parameter"),
        ({"learn": {"g": 1.0}, "groups": {"h": [0]}}, "not in learn"),
        ({"learn": {"g": 1.0}, "groups": [0.5, 1]}, "whole numbers"),
        ({"learn": {"g": 1.0}, "groups": [-1, 0]}, "numbered from 0"),
        ({"groups": [0, 1]}, "must map names"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        operators.Function(lambda x, g: g * x, (3,), **options)


def test_values_of_another_shape_are_refused():
    A = operators.Function(lambda x, g: g.sum() * x, (3,), learn={"g": [1.0, 2.0]})
    with pytest.raises(InputError, match=r"g has shape \(2,\), got a value of shape \(3,\)"):
        with_values(A, {"g": torch.zeros(3)})
    with pytest.raises(InputError, match="no value"):
        with_values(A, {})
    grouped = operators.Function(lambda x, g: g[:, None] * x, (3,), learn={"g": 1.0}, groups=[0, 1, 2])
    with pytest.raises(InputError, match="the first axis: groups"):
        with_values(grouped, {"g": torch.zeros(2)})


def test_a_result_without_gradient_is_refused():
    A = operators.Function(lambda x, g: g.item() * x, (3,), learn={"g": 1.0})
    with pytest.raises(InputError, match=r"does not depend on g through differentiable operations.*item"):
        derivatives(A, torch.ones(1, 3))
