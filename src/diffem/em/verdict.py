"""The best lap of a run, by its prediction of hidden values of held-out observations.

Laps are compared observation by observation. The mean difference has a standard error s, and a lap is worse than
another only if the difference exceeds t·s, with Student's t at a level that is divided among all laps of a run.
Otherwise the two are equally good, and the later one is preferred because it has been trained longer. For a channel,
whose values have no likelihood, laps are compared by the energy score of observations simulated from prior samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..core.errors import InputError
from ..metrics.calibration import student_quantile
from ..runs.rundir import RunDir
from .model_check.significance import LAPS_LEVEL

Lap = int | str | None  # a lap's number, "best", or None for the last
History = Sequence[dict[str, Any]]  # the metrics of laps
BEST = 'lap="best", or --lap best on the command line'


@dataclass(frozen=True)
class Criterion:
    """A criterion that laps are compared by; higher is better.

    Attributes:
        key: Its key in the metrics of a lap.
        each: The key of its value for every held-out observation.
        error: The key of its standard error.
        unit: Its unit in words.
        name: What it measures, in words.
    """

    key: str
    each: str
    error: str
    unit: str
    name: str

    def __call__(self, lap: dict[str, Any]) -> float:
        return float(lap[self.key])

    def text(self, lap: dict[str, Any]) -> str:
        """The value of a lap with its standard error and unit."""
        error = lap.get(self.error)
        return f"{lap[self.key]:.3f}{'' if error is None else f' ± {error:.3f}'} {self.unit}"


PREDICTION = Criterion(
    "predictive_log_likelihood", "predictive_each", "predictive_error", "nats per value", "held-out prediction"
)
SIMULATION = Criterion(
    "simulation_score", "simulation_each", "simulation_error", "energy score", "observations simulated from its samples"
)


def criterion_of(lap: dict[str, Any]) -> Criterion:
    """The criterion by which a lap is compared: the prediction of hidden values, or for a channel the energy score."""
    return SIMULATION if lap.get(SIMULATION.key) is not None else PREDICTION


@dataclass(frozen=True)
class Difference:
    """The difference between two laps in the prediction of held-out values, in units of their criterion.

    Attributes:
        loss: The difference; positive if the second lap is worse.
        error: Its standard error; None if it cannot be computed.
        count: The number of held-out observations.
    """

    loss: float
    error: float | None
    count: int

    def beyond_chance(self, level: float) -> bool:
        """Whether equally good laps differ by this much with a probability below `level`."""
        return self.error is not None and self.loss > student_quantile(1 - level, self.count - 1) * self.error

    def __str__(self) -> str:
        return f"{self.loss:.3f}" if self.error is None else f"{self.loss:.3f} ± {self.error:.3f}"


def difference(better: dict[str, Any], lap: dict[str, Any]) -> Difference:
    """Return how much worse the metrics of `lap` are than those of `better`."""
    criterion = criterion_of(lap)
    loss = criterion(better) - criterion(lap)
    then, now = (torch.tensor(m.get(criterion.each, []), dtype=torch.float64) for m in (better, lap))
    if len(now) != len(then) or len(now) < 2:
        return Difference(loss, None, len(now))
    each = then - now
    return Difference(loss, float(each.std()) / math.sqrt(len(each)), len(each))


def evaluated(history: History) -> list[dict[str, Any]]:
    """Return the laps that were evaluated on held-out observations."""
    laps = [(m, criterion_of(m)) for m in history]
    # lap 0 of a channel only provides the first draws: its prior cannot be conditioned on other observations
    usable = [(m, criterion.key) for m, criterion in laps if criterion is PREDICTION or m["lap"] > 0]
    return [m for m, key in usable if m.get(key) is not None and math.isfinite(m[key])]


@dataclass(frozen=True)
class Verdict:
    """The best of a run's finished laps.

    Attributes:
        best: The lap to use; None if there are no held-out observations.
        last: The last finished lap.
        text: A sentence about the best lap.
        worse: Whether the last lap is significantly worse than the best.
    """

    best: int | None
    last: int
    text: str
    worse: bool = False


def verdict(history: History) -> Verdict:
    """Return the best lap of a run; history: the metrics of all finished laps."""
    last, laps = history[-1], evaluated(history)
    number = int(last["lap"])
    if not laps or last not in laps:
        return Verdict(
            None, number, f"the best lap is unknown: lap {number} was not evaluated on held-out observations"
        )
    criterion = criterion_of(last)
    top = max(laps, key=lambda m: (criterion(m), m["lap"]))
    found = difference(top, last)
    if top is last:
        return Verdict(
            number, number, f"lap {number}, the last, is the best by {criterion.name} ({criterion.text(last)})"
        )
    if not found.beyond_chance(LAPS_LEVEL / (3 * max(1, len(history) - 1))):
        text = (
            f"lap {number}, the last, is as good as any by {criterion.name} ({criterion.text(last)}; "
            f"lap {top['lap']} is ahead by {found}, which may be chance)"
        )
        return Verdict(number, number, text)
    text = f"lap {top['lap']} is the best by {criterion.name} ({criterion.text(top)}); lap {number}, the last, "
    if last.get("conditioned") == 0:
        text += (
            f"trained the prior alone, and posterior draws of its conditional network are worse by {found}: use "
            f"lap {number} for prior samples and lap {top['lap']} for posterior draws ({BEST})"
        )
    else:
        text += f"is worse by {found}: use lap {top['lap']} ({BEST})"
    return Verdict(int(top["lap"]), number, text, worse=True)


def choose_lap(run: RunDir, lap: Lap = None) -> int:
    """Return the number of a finished lap: `lap`, the last for None, the best for `"best"`."""
    if not isinstance(lap, str):
        return run.finished_lap(lap)
    if lap != "best":
        raise InputError(f"lap must be a number or 'best', got {lap!r}")
    run.finished_lap()
    found = verdict(run.metrics())
    if found.best is None:
        raise InputError(f"{run.path}: {found.text}; choose a lap by its number")
    return found.best
