"""Indices of observations: what they select, and what is an error rather than an empty or endless result."""

import numpy as np
import pytest
import torch

from diffem import Observations, operators, priors
from diffem.core.batched import as_index, take
from diffem.core.errors import InputError, RangeError
from diffem.observations.lazy import as_lazy

X = torch.arange(12.0).reshape(6, 2)
VALUES = {
    "observations": lambda: Observations(X, operators.Mask(X >= 0), sigma=torch.arange(1.0, 7)),
    "lazy": lambda: as_lazy(Observations(X, operators.Mask(X >= 0), sigma=0.1)),
    "dense": lambda: operators.Dense(torch.ones(6, 1, 2)),
    "covariance": lambda: Observations(X, operators.Identity(), sigma=1 + X).cov,
    "posterior": lambda: priors.GaussianPrior(torch.zeros(2), torch.eye(2)).posterior(
        Observations(X, operators.Identity(), sigma=0.1)
    ),
}


@pytest.mark.parametrize("index", [-2, np.int64(-2), slice(4, 5), [4], [-2], np.arange(6) == 4, torch.tensor([4])])
def test_the_same_observation_by_any_index(index):
    assert take(X, as_index(index)).tolist() == [[8.0, 9.0]]


def test_a_boolean_per_observation_is_not_a_number():
    assert take(X[:1], as_index(torch.tensor([True]))).tolist() == [[0.0, 1.0]]
    assert take(X, as_index(torch.tensor(1))).tolist() == [[2.0, 3.0]]


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(
    ("index", "words"),
    [
        (6, "the index selects no observations"),
        (-7, "the index selects no observations"),
        (slice(4, 2), "the index selects no observations"),
        ([], "the index selects no observations"),
        ([0, 6], "observation 6 of 6 does not exist"),
        (torch.tensor([0, -7]), "observation -7 of 6 does not exist"),
        (torch.tensor([True, False]), "2 entries does not fit 6"),
        (torch.ones(2), "integers or booleans, got torch.float32"),
        (slice(None, None, -1), "a positive step.*got the step -1"),
        (torch.zeros(1, 1, dtype=torch.int64), r"shape \(1, 1\)"),
        ("a", "got 'a'"),
        (None, "got None"),
        (1.0, "got torch.float32"),
        (True, "got a bool"),
    ],
)
def test_bad_indices_are_errors(name, index, words):
    with pytest.raises(InputError, match=words):
        VALUES[name]()[index]


def test_a_mask_that_is_not_resolved_yet_checks_its_index_when_it_meets_data():
    A = operators.Mask(X >= 0)
    with pytest.raises(InputError, match="observation 9 of 6"):
        A[torch.tensor([0, 9])](X[:2])
    with pytest.raises(InputError, match="the index selects no observations"):
        A[7](X[:1])


def test_loops_over_observations_end():
    """Python iterates by index until an IndexError; values that all observations share have no end."""
    assert [float(obs.y[0, 0]) for obs in VALUES["observations"]()] == X[:, 0].tolist()
    assert issubclass(RangeError, IndexError)
    for value in (operators.Identity(), VALUES["dense"](), VALUES["covariance"]()):
        with pytest.raises(TypeError, match="not iterable"):
            iter(value)
