"""Operator parameters that a run estimates: from the start, through the laps, resumed, and in what the run reports."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import diffem
from diffem import InputError, Observations, operators
from diffem.cli.commands import app
from diffem.em.parameter_update import draw_scores, updated_parameters
from diffem.priors import GaussianPrior
from diffem.priors.operator_classes import OperatorClasses
from diffem.priors.parameter_scoring import _state_after_em
from diffem.priors.parameters import OperatorParameters, with_first_values
from diffem.report.page import write_report
from tests.em.small import RECIPE

WEIGHTS, SIGMA = torch.tensor([0.0, 1.2]), 0.05


def smoothed(x: Tensor, weight: Tensor, width: Tensor) -> Tensor:
    """Every entry with `weight·width` of its neighbours, periodically; weight `(n,)`."""
    return x + (weight * width)[:, None] * (x.roll(1, 1) + x.roll(-1, 1))


def observations(first: float | None = 0.39, n: int = 400, seed: int = 3) -> Observations:
    """A circle and its double angle in six values, with width 0.3."""
    generator = torch.Generator().manual_seed(seed)
    angle = 6.3 * torch.rand(n, generator=generator)
    x = torch.stack([f(k * angle) for k in (1, 2, 3) for f in (torch.cos, torch.sin)], 1)
    weight = WEIGHTS[torch.arange(n) % len(WEIGHTS)]
    y = smoothed(x, weight, torch.tensor(0.3)) + SIGMA * torch.randn(n, 6, generator=generator)
    given = {"width": 0.3} if first is None else {"learn": {"width": first}}
    return Observations(y, operators.Function(smoothed, (6,), weight=weight, **given), sigma=SIGMA)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parameters") / "run"
    return diffem.fit(observations(), RECIPE, folder, progress=False, report=False)


def test_a_run_finds_a_width_that_was_30_per_cent_off(run):
    for lap in run.laps:
        assert lap["operator_parameters"]["width"] == pytest.approx(0.3, rel=0.05)
        assert 0 < lap["operator_errors"]["width"] < 0.01
        assert lap["operator_determined"]
    assert any(note.startswith("width is 0.3") or note.startswith("width is 0.29") for note in run.laps[-1]["notes"])


def test_the_prior_carries_the_parameters_and_conditions_with_them(run):
    parameters = run.prior.operator_parameters
    assert parameters["width"].value == (run.laps[-1]["operator_parameters"]["width"],)
    unknown = observations()[:4]
    known = Observations(unknown.y, parameters.apply(unknown.A), sigma=SIGMA)
    drawn = (run.prior.posterior(obs, method="mmps").sample(steps=4, progress=False) for obs in (unknown, known))
    assert torch.equal(*drawn)
    with pytest.raises(InputError, match="no parameter 'height' was learned"):
        parameters["height"]


def test_a_resumed_run_ends_with_the_same_bits(run, tmp_path):
    copy = shutil.copytree(run.path, tmp_path / "copy")
    for name in ("prior.safetensors", "metrics.json"):
        (copy / "laps/002" / name).unlink()
    again = diffem.fit(observations(), RECIPE, copy, progress=False, report=False)
    assert again.prior.operator_parameters == run.prior.operator_parameters
    weights, resumed = (r.prior.state_dict() for r in (run, again))
    assert all(torch.equal(weights[name], resumed[name]) for name in weights)


def test_an_export_keeps_the_parameters(run, tmp_path):
    result = CliRunner().invoke(app, ["export", str(run.path), "-o", str(tmp_path / "export")])
    assert result.exit_code == 0
    assert diffem.load(tmp_path / "export").operator_parameters == run.prior.operator_parameters


def test_the_report_shows_the_path_of_the_parameter(run):
    text = write_report(run.path, observations()).read_text()
    assert "width of A" in text
    lap = run.laps[-1]
    cell = f"{lap['operator_parameters']['width']:.4g} ± {lap['operator_errors']['width']:.2g}"
    assert f"<td>{cell}</td>" in text


def test_a_run_from_another_initial_value_is_another_run(run):
    with pytest.raises(InputError, match="observations"):
        diffem.fit(observations(0.25), RECIPE, run.path, progress=False)


class _Draws:
    """Draws in memory, with the interface of `DrawStore`."""

    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return 2

    def range(self, k: int) -> tuple[int, int]:
        half = self.x.shape[1] // 2
        return k * half, (k + 1) * half

    def read(self, k: int) -> Tensor:
        first, end = self.range(k)
        return self.x[:, first:end]


def test_the_score_of_exact_draws_is_the_gradient_of_the_likelihood():
    """Fisher's identity: E[∇ log p(y | x, θ) | y] = ∇ log p(y | θ)."""
    torch.manual_seed(0)
    obs = observations(0.35, n=60).to(torch.float64)
    root, mean = 0.4 * torch.randn(6, 6, dtype=torch.float64) + torch.eye(6), torch.randn(6, dtype=torch.float64)
    prior = GaussianPrior(mean, root @ root.T)
    classes = OperatorClasses.of(obs)
    step = 1e-4
    ends = [
        _state_after_em(classes, torch.tensor([0.35 + d], dtype=torch.float64), mean, root, 0).log_likelihood
        for d in (step, -step)
    ]
    expected = (ends[0] - ends[1]) / (2 * step) / len(obs)
    at = OperatorParameters.of(
        obs.A, torch.tensor([0.35]).double(), torch.eye(1, dtype=torch.float64), torch.tensor([True]), len(obs)
    )
    draws = torch.stack([prior.draw_posterior(with_first_values(obs, classes.value), draw=k) for k in range(80)])
    score, square = draw_scores(at, obs, _Draws(draws))  # type: ignore[arg-type]
    # standard error of the mean over 80 draws
    each = torch.stack([draw_scores(at, obs, _Draws(draws[k : k + 1]))[0] for k in range(20)])  # type: ignore[arg-type]
    error = float(each.std()) / 80**0.5
    assert abs(float(score) - expected) < 4 * error
    assert error < 0.1 * abs(expected)
    assert square.shape == (1, 1)


def test_draws_move_an_estimate_by_their_precision_only():
    A = observations().A
    start = OperatorParameters.of(
        A, torch.tensor([0.3]).double(), torch.tensor([[1e-4]]).double(), torch.tensor([True]), 100
    )
    score, square = torch.tensor([5.0]).double(), torch.tensor([[2500.0]]).double()
    new = updated_parameters(start, start, score, square, 100)
    # the step is 100 · 1e-4 · 5 = 0.05, its variance (100 · 1e-4)² · 2500 · (1/100 + 0.3²) = 0.025
    weight = 1e-4 / (1e-4 + 0.025)
    assert new["width"].value[0] == pytest.approx(0.3 + weight * 0.05)
    assert new["width"].error[0] == pytest.approx((1e-4 * (1 - weight)) ** 0.5)
    unknown = OperatorParameters.of(A, torch.tensor([0.3]), torch.zeros(1, 1), torch.tensor([False]), 100)
    assert updated_parameters(unknown, unknown, score, square, 100) is unknown


def rounded(x: Tensor, width: Tensor) -> Tensor:
    return x * width.round()


def detached(x: Tensor, width: Tensor) -> Tensor:
    return x * width * width.detach()


def untracked(x: Tensor, width: Tensor) -> Tensor:
    return x * width.item()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (untracked, "does not depend on width through differentiable"),
        (rounded, "does not depend on width through differentiable"),
        (lambda x, width: x * (2 + 0 * width), "does not depend on width at its initial value"),
        (detached, "derivative of A x with respect to width is wrong"),
        (lambda x, width: x * (width - 0.39).sqrt(), "not finite at the initial values"),
    ],
)
def test_functions_that_cannot_be_learned_are_refused_before_the_run(function, message, tmp_path):
    obs = Observations(torch.randn(40, 6), operators.Function(function, (6,), learn={"width": 0.39}), sigma=0.1)
    with pytest.raises(InputError, match=message):
        diffem.fit(obs, RECIPE, tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_unsupported_problems_are_refused_by_name(tmp_path):
    obs = observations()
    cases = [
        (Observations(obs.y, obs.A, sigma="learn"), "learn: width: the noise level is unknown too"),
        (
            Observations(torch.randn(40, 520), operators.Function(rounded, (520,), learn={"width": 1.5}), sigma=0.1),
            "at most 512 numbers, these have 520",
        ),
        (
            Observations(
                torch.randn(40, 6),
                operators.Function(lambda x, w: x * w.sum(), (6,), learn={"w": torch.ones(65)}),
                sigma=0.1,
            ),
            "at most 64 numbers can be learned",
        ),
    ]
    for case, message in cases:
        with pytest.raises(InputError, match=message):
            diffem.fit(case, RECIPE, tmp_path / "run", progress=False)


def test_a_prior_learned_elsewhere_does_not_guess_the_parameters():
    prior = GaussianPrior(torch.zeros(6), torch.eye(6))
    with pytest.raises(InputError, match=r"parameters to learn \(width\)"):
        prior.posterior(observations())
