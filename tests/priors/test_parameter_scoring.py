"""Parameters of operators by the efficient score under a Gaussian prior."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from diffem import Observations, operators
from diffem.priors import parameter_scoring
from diffem.priors.operator_classes import OperatorClasses
from diffem.priors.parameter_scoring import _state_after_em, efficient_score, score_parameters
from diffem.priors.parameters import OperatorParameters

SIZE = 8


def blurred(x: Tensor, factor: Tensor, width: Tensor) -> Tensor:
    """A circular Gaussian blur of width `width·factor`."""
    distance = torch.arange(SIZE, dtype=x.dtype)
    distance = torch.minimum(distance, SIZE - distance)
    kernel = torch.exp(-0.5 * (distance / (width * factor)[:, None]) ** 2)
    transfer = torch.fft.fft(kernel / kernel.sum(1, keepdim=True))
    return torch.fft.ifft(torch.fft.fft(x) * transfer).real


def signals(n: int, generator: torch.Generator) -> Tensor:
    """Bumps at random places, `(n, 8)`: far from Gaussian."""
    place = torch.randint(SIZE, (n, 1), generator=generator)
    height = 1 + torch.rand(n, 1, generator=generator)
    return height * ((torch.arange(SIZE) - place) % SIZE < 3)


def observations(
    first: float, factors: tuple[float, ...] = (0.5, 1.0, 1.5), n: int = 400, seed: int = 0, groups: bool = False
) -> Observations:
    """Signals blurred by widths of 1 (and 1.2 in a second group) times known factors."""
    generator = torch.Generator().manual_seed(seed)
    x, labels = signals(n, generator), torch.arange(n) // len(factors) % 2
    factor = torch.tensor(factors)[torch.arange(n) % len(factors)]
    true = factor * torch.tensor([1.0, 1.2])[labels] if groups else factor
    y = blurred(x, true, torch.tensor(1.0)) + 0.1 * torch.randn(n, SIZE, generator=generator)
    options = {"groups": labels} if groups else {}
    return Observations(
        y, operators.Function(blurred, (SIZE,), factor=factor, learn={"width": first}, **options), sigma=0.1
    )


def test_observations_with_equal_operators_form_a_class():
    obs = observations(1.3, n=31)
    classes = OperatorClasses.of(obs)
    assert classes.count.tolist() == [11, 10, 10]
    y = obs.y.double()
    for c in range(3):
        torch.testing.assert_close(classes.mean[c], y[c::3].mean(0))
        torch.testing.assert_close(classes.factor[c] @ classes.factor[c].T, y[c::3].T.cov(correction=0))
    alone = OperatorClasses.of(Observations(obs.y, operators.Function(
        blurred, (SIZE,), factor=torch.linspace(0.5, 1.5, 31), learn={"width": 1.3}), sigma=0.1))  # fmt: skip
    assert alone.factor.shape == (31, SIZE, 0)


def test_score_and_information_are_those_of_the_dense_model(monkeypatch):
    """All derivatives of the means and covariances of y by (θ, μ, R), formed by automatic differentiation."""
    monkeypatch.setattr(parameter_scoring, "ACCURATE", 1e-12)
    torch.manual_seed(0)
    n, P = 9, 2

    def measure(x: Tensor, a: Tensor, theta: Tensor) -> Tensor:
        return torch.stack(
            [theta[0] ** 2 * a * x[:, 0] + x[:, 1], a**2 * x[:, 0] + theta[1] * a * x[:, 1] + x[:, 2]], 1
        )

    a = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)[torch.arange(n) % 3]
    A = operators.Function(measure, (3,), a=a, learn={"theta": [0.8, 1.1]})
    obs = Observations(torch.randn(n, 2, dtype=torch.float64), A, sigma=0.7)
    classes = OperatorClasses.of(obs)
    state = _state_after_em(classes, classes.value, *(torch.randn(*s, dtype=torch.float64) for s in ((3,), (3, 3))), 0)
    found = efficient_score(classes, state)

    def law(vector: Tensor, i: int) -> tuple[Tensor, Tensor]:
        theta, mean, root = vector[:P], vector[P : P + 3], vector[P + 3 :].reshape(3, 3)
        rows = measure(torch.eye(3, dtype=torch.float64), a[i].expand(3), theta).T
        signal = rows @ root
        return rows @ mean, signal @ signal.T + 0.49 * torch.eye(2, dtype=torch.float64)

    vector = torch.cat([state.theta, state.mean, state.root.flatten()])
    information = torch.zeros(len(vector), len(vector), dtype=torch.float64)
    scores = []
    for i in range(n):
        mean, K = law(vector, i)
        dm, dK = torch.autograd.functional.jacobian(lambda v, i=i: law(v, i), vector)
        white = torch.einsum("ab,bck->ack", torch.linalg.inv(K), dK)
        information += dm.T @ torch.linalg.inv(K) @ dm + 0.5 * torch.einsum("abk,bal->kl", white, white)
        r = torch.linalg.solve(K, obs.y[i] - mean)
        trace = torch.einsum("aak->k", white)
        scores.append(dm.T @ r + 0.5 * (torch.einsum("a,abk,b->k", r, dK, r) - trace))
    score = torch.stack(scores)
    Z = torch.linalg.pinv(information[P:, P:]) @ information[P:, :P]
    # the solve by conjugate gradients is exact to about 1e-8 here
    torch.testing.assert_close(found.full, information[:P, :P])
    schur = information[:P, :P] - information[:P, P:] @ Z
    torch.testing.assert_close(found.information, schur, rtol=1e-6, atol=1e-7 * float(information.max()))
    assert float(torch.linalg.eigvalsh(schur)[0]) > 1e-3  # θ is determined
    each = score[:, :P] - score[:, P:] @ Z
    torch.testing.assert_close(found.score, each.sum(0), rtol=1e-6, atol=1e-6 * float(score.abs().max()))
    torch.testing.assert_close(found.spread, each.T @ each, rtol=1e-6, atol=1e-6 * float(score.square().max()))


@pytest.mark.parametrize("first", [0.7, 1.3])
def test_a_width_that_is_30_per_cent_off_is_found_within_5_per_cent(first):
    parameters, _ = score_parameters(observations(first, n=1200), progress=False)
    estimate = parameters["width"]
    assert parameters.is_settled
    assert parameters.is_determined
    assert estimate.value[0] == pytest.approx(1.0, rel=0.05)
    assert 0 < estimate.error[0] < 0.02


def test_standard_errors_hold_for_signals_that_are_not_gaussian():
    z = []
    for seed in range(12):
        estimate = score_parameters(observations(1.1, n=240, seed=seed), progress=False)[0]["width"]
        z.append((estimate.value[0] - 1) / estimate.error[0])
    # the mean of 12 squares of normal numbers lies in (0.2, 2.8) with a probability of 99.9 %
    assert 0.2 < sum(value**2 for value in z) / len(z) < 2.8


def test_groups_have_their_own_values():
    estimate = score_parameters(observations(1.3, groups=True), progress=False)[0]["width"]
    assert estimate.shape == (2,)
    assert estimate.value == pytest.approx((1.0, 1.2), rel=0.05)


def test_one_blur_for_all_observations_is_not_determined():
    """Every width explains y, with another covariance of x."""
    parameters, score = score_parameters(observations(1.3, factors=(1.0,)), progress=False)
    assert float(score.information / score.full) < 1e-5
    assert not parameters.is_determined
    assert parameters["width"].value == (1.3,)
    assert "not determined" in str(parameters)


def test_parameters_survive_a_file():
    parameters, _ = score_parameters(observations(1.3, n=60, groups=True), progress=False)
    note = parameters.note()
    assert OperatorParameters.read(note) == parameters
    for damage in (
        3,
        {},
        {**note, "covariance": [[1.0]]},
        {**note, "observations": 0},
        {**note, "is_settled": 1},
        {**note, "estimates": {"width": {**note["estimates"]["width"], "value": [math.nan, 1.0]}}},
    ):
        with pytest.raises(Exception, match="operator parameters"):
            OperatorParameters.read(damage)
