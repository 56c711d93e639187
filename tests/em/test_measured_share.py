"""When the loss on measured values is correct: its exact minimiser, and the observations for which it is not used."""

import math

import pytest
import torch

import diffem
from diffem import Observations, operators
from diffem.em.augment import Augment
from diffem.em.determined import determined
from diffem.em.measured_loss import MeasuredLoss, mean_gain, one_operator, usable_share
from diffem.linalg import Isotropic
from diffem.observations.fingerprint import fingerprint

from .small import RECIPE, observations

DOUBLE = torch.float64


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


# the minimiser --------------------------------------------------------------------------------------------------------


def minimiser(x, A, weights, share):
    """The minimiser d `(N,)` of the library's loss over samples x `(n, N)` with operators A and probabilities `(n,)`.

    The loss is quadratic in d: its gradients at 0 and at the unit vectors give its Hessian, and one step of Newton's
    method the minimum.
    """
    rows = torch.arange(len(x))
    D = determined(A, Isotropic(torch.tensor(0.01, dtype=DOUBLE)), len(x), tuple(x.shape[1:]), 1.0)
    gain = mean_gain(D, len(x), tuple(x.shape[1:]), x, 0)
    loss = MeasuredLoss(D, rows, share, Augment([], tuple(x.shape[1:])), gain)

    def gradient(d):
        d = d.clone().requires_grad_()
        total = loss(weights.sqrt().unsqueeze(-1) * (d - x), rows, torch.zeros(len(x), 0))
        return torch.autograd.grad(total, d)[0]

    at_zero = gradient(torch.zeros(x.shape[1], dtype=DOUBLE))
    hessian = torch.stack([gradient(e) - at_zero for e in torch.eye(x.shape[1], dtype=DOUBLE)])
    return -torch.linalg.solve(hessian, at_zero)


POINTS = torch.randn(7, 3, generator=generator(), dtype=DOUBLE)  # where x may be
OPERATORS = {
    "masks": torch.diag_embed((torch.rand(5, 3, generator=generator(1)) < 0.4).to(DOUBLE)),
    "dense": torch.randn(5, 3, 3, generator=generator(2), dtype=DOUBLE),
    "gains from 0.01 to 1": torch.diag_embed(torch.logspace(-2, 0, 15, dtype=DOUBLE).reshape(5, 3)),
}


@pytest.mark.parametrize("share", [0.0, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("kind", OPERATORS)
def test_operators_that_do_not_depend_on_x_leave_the_minimiser(kind, share):
    """d = E[W | x_t]⁻¹ E[W x | x_t] = E[x | x_t], on a discrete problem where all expectations are sums."""
    x_t, sigma = torch.tensor([0.3, -0.2, 0.5], dtype=DOUBLE), 0.8
    p_x = torch.softmax(torch.randn(7, generator=generator(3), dtype=DOUBLE), 0)
    p_A = torch.softmax(torch.randn(5, generator=generator(4), dtype=DOUBLE), 0)
    posterior = torch.softmax(p_x.log() - 0.5 * (x_t - POINTS).square().sum(1) / sigma**2, 0)
    x, A = POINTS.repeat_interleave(5, 0), operators.Dense(OPERATORS[kind].repeat(7, 1, 1))
    d = minimiser(x, A, posterior.outer(p_A).flatten(), share)
    assert torch.allclose(d, posterior @ POINTS, rtol=0, atol=1e-10)


CORRELATION, SHARE = 0.8, 0.8


def adaptive_bias(sigma, weight):
    """Root mean square over x_t of d₂ − E[x₂ | x_t] for x ~ N(0, [[1, c], [c, 1]]), x₂ measured only where x₁ > 0.

    Given x_t, x is Gaussian with mean μ and covariance V. With w₊ and w₋ the loss's weights of x₂ where it is measured
    and where not, and Φ and φ the standard normal law at μ₁/√V₁₁, the bias is (w₊ − w₋) V₁₂/√V₁₁ φ / (w₋ + (w₊ − w₋)
    Φ). The mean over μ₁ is taken by quadrature.
    """
    cov, eye = torch.tensor([[1, CORRELATION], [CORRELATION, 1]], dtype=DOUBLE), torch.eye(2, dtype=DOUBLE)
    shrink = cov @ torch.linalg.inv(cov + sigma**2 * eye)
    V, spread = cov - shrink @ cov, (shrink @ cov)[0, 0].sqrt()  # of x given x_t, and of μ₁
    u = torch.linspace(-8, 8, 4001, dtype=DOUBLE)
    law, a = torch.exp(-0.5 * u**2) / math.sqrt(2 * math.pi), spread * u / V[0, 0].sqrt()
    phi, Phi = torch.exp(-0.5 * a**2) / math.sqrt(2 * math.pi), torch.special.ndtr(a)
    difference = weight[1] - weight[0]
    bias = difference * V[0, 1] / V[0, 0].sqrt() * phi / (weight[0] + difference * Phi)
    return float(torch.trapezoid(bias**2 * law, u).sqrt())


@pytest.mark.parametrize(("sigma", "expected"), [(1.0, 0.1846), (10.0, 0.4588)])
def test_operators_that_depend_on_x_bias_the_minimiser(sigma, expected):
    """By 0.18 and 0.46 of a standard deviation; EM, with share 0, has no such term."""
    mask = torch.tensor([[True, False], [True, True]])
    A, rows = operators.Mask(mask).resolve_axes(torch.zeros(1, 2)), torch.arange(2)

    def weight(share):  # of the second value, where it is not measured and where it is: three values of four are
        D = determined(A, Isotropic(torch.tensor(1e-12, dtype=DOUBLE)), 2, (2,), 1.0)
        loss = MeasuredLoss(D, rows, share, Augment([], (2,)), gain=0.75)
        return [float(loss(torch.tensor([[0.0, 1.0]], dtype=DOUBLE), rows[k : k + 1], torch.zeros(1, 0))) for k in rows]

    assert weight(SHARE) == pytest.approx([1 - SHARE, 1 - SHARE + SHARE / 0.75])
    assert adaptive_bias(sigma, weight(SHARE)) == pytest.approx(expected, abs=5e-5)
    assert adaptive_bias(sigma, weight(0.0)) == 0


# for which observations it is left out --------------------------------------------------------------------------------


def masked(mask, adaptive=False):
    return Observations(torch.zeros(len(mask), 4), operators.Mask(mask), sigma=0.1, adaptive=adaptive)


def test_the_share_that_is_used():
    mask = torch.rand(600, 4, generator=generator()) < 0.5
    assert usable_share(0.8, masked(mask)) == (0.8, None)
    assert usable_share(0.0, masked(mask, adaptive=True)) == (0.0, None)
    share, why_not = usable_share(0.8, masked(mask, adaptive=True))
    assert share == 0
    assert "adaptive=True" in why_not
    share, why_not = usable_share(0.8, masked(mask[:1].expand(600, 4)))
    assert share == 0
    assert "share one operator" in why_not


def test_one_operator_for_all():
    mask = torch.rand(4, generator=generator()) < 0.5
    same = mask.expand(600, 4).clone()
    last = same.clone()
    last[-1, 0] = ~last[-1, 0]
    y, matrix = torch.zeros(600, 4), torch.randn(4, 4, generator=generator())
    shift = torch.zeros(600, 1)

    def compose(inner):
        return operators.Compose(operators.Mask(inner), operators.Dense(matrix.expand(600, 4, 4)))

    for A, expected in (
        (operators.Identity(), True),
        (operators.Mask(mask), True),
        (operators.Mask(same), True),
        (operators.Mask(last), False),
        (operators.Dense(matrix), True),
        (compose(same), True),
        (compose(last), False),
        (operators.Function(lambda x: 2 * x, (4,)), True),
        (operators.Function(lambda x, gain: gain * x, (4,), gain=shift + 1), True),
        (operators.Function(lambda x, gain: gain * x, (4,), gain=shift + torch.arange(600)[:, None]), False),
    ):
        assert one_operator(Observations(y, A, sigma=0.1)) is expected, A


def test_parts_of_adaptive_observations_are_adaptive(tmp_path):
    mask = torch.rand(6, 4, generator=generator()) < 0.5
    plain, marked = masked(mask), masked(mask, adaptive=True)
    for obs in (marked, marked[2:4], marked[[0, 5]], marked.to(torch.float64), marked.reduced()):
        assert obs.adaptive
    assert not plain[2:4].adaptive
    for obs in (plain, marked):
        obs.save(tmp_path / "o.safetensors")
        again = Observations.load(tmp_path / "o.safetensors")
        assert again.adaptive is obs.adaptive
        assert fingerprint(again.tensors()) == fingerprint(obs.tensors())
    assert fingerprint(plain.tensors()) != fingerprint(marked.tensors())
    assert "adaptive" not in plain.tensors()  # the fingerprint of observations without the mark is what it was
    with pytest.raises(ValueError, match="adaptive must be True or False"):
        Observations(torch.zeros(6, 4), operators.Mask(mask), sigma=0.1, adaptive="no")


QUICK = {"laps": 1, "train.steps": 24, "e_step.steps": 4, "watch.held_out": 4, "watch.draws": 2, "watch.samples": 4}


def notes(run):
    """The notes of lap 0 about the loss on measured values."""
    return [note for note in run.laps[0]["notes"] if "train.measured" in note]


def weights(path, lap=1):
    return torch.cat([p.flatten() for p in diffem.load(path, lap).network.parameters()])


def fitted(obs, out, **changes):
    changes = {name.replace("__", "."): value for name, value in changes.items()}
    return diffem.fit(obs, RECIPE, out, changes=QUICK | changes, progress=False)


@pytest.mark.parametrize("kind", ["adaptive", "one operator"])
def test_a_run_on_adaptive_observations_does_not_use_the_loss_on_measured_values(kind, tmp_path):
    """The run is bit-identical to one without the loss on measured values, and a note states the reason."""
    obs = observations(40)
    if kind == "adaptive":
        obs = Observations(obs.y, obs.A, sigma=0.1, adaptive=True)
    else:
        obs = Observations(obs.y, operators.Mask(obs.measured[:1].expand(40, 4)), sigma=0.1)
    asked, plain = fitted(obs, tmp_path / "asked", train__measured=0.8), fitted(obs, tmp_path / "plain")
    assert torch.equal(weights(asked.path), weights(plain.path))
    assert asked.laps[1]["measured"] == 0
    assert len(notes(asked)) == 1
    assert "train.measured is 0.8 in the recipe, but this run uses 0" in notes(asked)[0]
    assert notes(plain) == []


def test_other_runs_use_the_loss_on_measured_values(tmp_path):
    obs = observations(40)
    asked, plain = fitted(obs, tmp_path / "asked", train__measured=0.8), fitted(obs, tmp_path / "plain")
    assert not torch.equal(weights(asked.path), weights(plain.path))
    assert asked.laps[1]["measured"] == 0.8
    assert notes(asked) == []


def test_schedules_count_the_laps_of_the_run_itself(tmp_path):
    """The laps of the run that a run starts from do not count."""
    obs = observations(40)
    first = fitted(obs, tmp_path / "first")
    start = {"start": str(first.path)}
    until = fitted(obs, tmp_path / "until", **start, laps=2, train__measured={"value": 0.8, "last": 1})
    plain = fitted(obs, tmp_path / "plain", **start)
    assert not torch.equal(weights(until.path, 1), weights(plain.path, 1))
    assert [lap["measured"] for lap in until.laps[1:]] == [0.8, 0]
