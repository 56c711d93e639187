"""The rounds of `fit_gaussian`.

They end when the likelihood of the observations, or of held-out ones, no longer increases.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..observations import Observations
from .fit_full import FullModel
from .fit_low_rank import LowRankModel
from .fit_sampled import SampledModel

PATIENCE = 2  # successive steps without improvement on the held-out observations after which a fit stops
HELD_OUT_TOLERANCE = 5e-4  # nats per held-out value that count as an improvement

Model = FullModel | LowRankModel | SampledModel


@dataclass
class FitHistory:
    """Log-likelihoods per measured value during a fit, whose result is one more round ahead.

    Attributes:
        log_likelihood: That of the observations, one entry per accepted round (NaN if it is not computed).
        held_out: That of the held-out observations, after the first round and one round after every step.
    """

    log_likelihood: list[float] = field(default_factory=list)
    held_out: list[float] = field(default_factory=list)


@dataclass
class FitState:
    """State of a fit between two steps: the current and the best parameters, and the log-likelihoods."""

    tensors: dict[str, Tensor]
    log_likelihood: list[float]
    held_out: list[float] = field(default_factory=list)


@dataclass
class HeldOutScores:
    """Held-out observations. A fit stops when their likelihood no longer improves, and returns the best parameters.

    Attributes:
        batches: The observations.
        total: The number of their measured values.
        scores: Their log-likelihood per measured value, after the first round and one round after every step.
        best: The state of the model with the highest score.
    """

    batches: Iterable[Observations]
    total: int
    scores: list[float] = field(default_factory=list)
    best: dict[str, Tensor] = field(default_factory=dict)

    def note(self, model: Model) -> bool:
        """Score the model after one more round; returns whether to stop."""
        model = _after_a_round(model)
        scorer = model.scorer()
        assert scorer is not None
        score = sum(scorer.expect(part) for part in self.batches) / self.total
        if not score <= max(self.scores, default=-math.inf):
            self.best = {name: tensor.clone() for name, tensor in model.state().items()}
        self.scores.append(score)
        recent, earlier = self.scores[-PATIENCE:], self.scores[:-PATIENCE]
        return bool(earlier) and max(recent) < max(earlier) + HELD_OUT_TOLERANCE


@dataclass
class Rounds:
    """The options of `fit_gaussian` that concern its rounds.

    Attributes:
        per_value: Subtracted from the log-likelihood per value, which is computed in units of the data's scale.
    """

    rounds: int
    tolerance: float
    per_value: float
    history: FitHistory
    progress: bool | None
    checkpoint: Callable[[FitState], None] | None
    resume: FitState | None

    def record(self, log_likelihood: float) -> None:
        """Add the log-likelihood of a round to the history."""
        self.history.log_likelihood.append(log_likelihood - self.per_value)


def run_rounds(
    model: Model, expect: Callable[[Model], float], extrapolates: bool, held_out: HeldOutScores | None, fit: Rounds
) -> Model:
    """Run steps of expectation–maximisation from the model's parameters; returns the model with the final parameters.

    A step is two rounds and an extrapolation, which is kept only if it increases the likelihood. With a sampled E-step
    a step is one round; if `extrapolates` is False it is two rounds.

    An extrapolation can increase the likelihood although some variances have become far too large. The next round
    corrects them, and its sums exist already. The result is therefore the model after that round.

    Args:
        expect: Accumulates the sums over the observations and returns the log-likelihood per measured value.
    """
    history, resume = fit.history, fit.resume
    if resume is not None:
        model.restore({name: t for name, t in resume.tensors.items() if not name.startswith("best.")})
        history.log_likelihood[:] = resume.log_likelihood
        if held_out is not None:
            held_out.scores[:] = resume.held_out
            held_out.best = {
                name.removeprefix("best."): t for name, t in resume.tensors.items() if name.startswith("best.")
            }
    current = expect(model)  # a resumed fit recomputes the sums of its last round
    if resume is None:
        fit.record(current)
        if held_out is not None:
            held_out.note(model)
    while len(history.log_likelihood) < fit.rounds:
        if fit.checkpoint is not None:
            tensors = dict(model.state())
            scores = []
            if held_out is not None:
                tensors |= {f"best.{name}": t for name, t in held_out.best.items()}
                scores = list(held_out.scores)
            fit.checkpoint(FitState(tensors, list(history.log_likelihood), scores))
        before = current
        model, current = _step(model, expect, current, extrapolates, fit)
        if held_out is None and current - before < fit.tolerance:
            break
        if held_out is not None and held_out.note(model):
            break
    if held_out is None:
        return _after_a_round(model)
    model.restore(held_out.best)
    return model


def _after_a_round(model: Model) -> Model:
    """Return a copy of a model after the round whose sums it holds.

    A model with a sampled E-step, which is never extrapolated, is returned itself.
    """
    if isinstance(model, SampledModel):
        return model
    after = copy.copy(model)
    after.maximise()
    return after


def sum_of_steps(step: Tensor, before: Tensor) -> Tensor:
    """Extrapolate a step of an iteration that alternates with rounds of a Gaussian fit, which lags behind.

    Steps that shrink by a constant factor are replaced by their sum, elementwise.

    Args:
        step: The step.
        before: The step before it, of the same shape; 0 if there was none.
    """
    ratio = torch.where(before != 0, step / before, 0).clamp(0, 0.75)
    return step / (1 - ratio)


def _step(
    model: Model, expect: Callable[[Model], float], current: float, extrapolates: bool, fit: Rounds
) -> tuple[Model, float]:
    """Run one step; returns the model and its log-likelihood."""
    if isinstance(model, SampledModel):
        model.maximise()
        current = expect(model)
        fit.record(current)
        return model, current
    path = [model.parameters()] if extrapolates else []
    for _ in range(2):
        model.maximise()
        current = expect(model)
        fit.record(current)
        if extrapolates:
            path.append(model.parameters())
    if not extrapolates:
        return model, current
    plain, saved = current, copy.copy(model)
    model.set_parameters(_extrapolate(*path))
    try:
        current = expect(model)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        # the extrapolation went so far that AΣAᵀ + Σ_y has no Cholesky factor in float64
        current = -math.inf
    if current >= plain:
        fit.record(current)
        return model, current
    return saved, plain  # too far: return to the parameters of plain EM


def _extrapolate(start: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """Extrapolate two EM rounds (SQUAREM, Varadhan & Roland 2008). Plain EM can need thousands of rounds."""
    step, bend = first - start, second - 2 * first + start
    length = -(step.norm() / bend.norm().clamp(min=1e-300)).clamp(min=1.0, max=1e3)
    return start - 2 * length * step + length**2 * bend
