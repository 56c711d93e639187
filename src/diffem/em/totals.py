"""The cost of a prior: laps, minutes and training examples, including those of earlier runs.

A run that starts from the prior of another run continues its totals. Lap 0 records the totals at the start of the run
(`laps_before`, `minutes_before`, `images_before`), and every lap the totals at its end (`minutes`, `images`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..core.errors import InputError
from ..files.reading import read_json
from ..files.writing import write_json
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir

LIMITS = {"laps": 1 << 20, "minutes": 1e9, "images": 1 << 60}


@dataclass(frozen=True)
class Totals:
    """The cost of a prior.

    Attributes:
        laps: Laps of expectation–maximisation.
        minutes: Their time, including the held-out evaluation.
        images: Training examples, including repetitions.
    """

    laps: int = 0
    minutes: float = 0.0
    images: int = 0

    @classmethod
    def read(cls, values: dict[str, Any], where: str) -> Totals:
        """Read totals from untrusted JSON; missing entries are 0.

        Args:
            where: The name of the file, for the message.

        Raises:
            InputError: If a value is not a number in its valid range.
        """
        for name, limit in LIMITS.items():
            value, kinds = values.get(name, 0), (int, float) if name == "minutes" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds) or not 0 <= value < limit:
                raise InputError(f"{where}: {name} should be a number from 0 to {limit:.0e}, got {value!r}"[:400])
        return cls(**{name: values.get(name, 0) for name in LIMITS})

    def before(self) -> dict[str, Any]:
        """Return the entries of lap 0 of a run that starts from this prior."""
        return {"laps_before": self.laps, "minutes_before": self.minutes, "images_before": self.images}


def totals(laps: list[dict[str, Any]], recipe: Recipe) -> Totals:
    """Return the totals at the end of a run's laps.

    Args:
        laps: The metrics of the laps, beginning with lap 0.
    """
    start = laps[0]
    minutes = math.fsum(lap.get("seconds", 0.0) for lap in laps) / 60
    images = sum(lap.get("steps", 0) * recipe.at(lap["lap"]).train.batch for lap in laps[1:])
    return Totals(
        start.get("laps_before", 0) + len(laps) - 1,
        start.get("minutes_before", 0.0) + minutes,
        start.get("images_before", 0) + images,
    )


# `elapsed.json` contains the time that an unfinished lap has taken so far.


def read_elapsed(run: RunDir, lap: int) -> float:
    """Return the seconds that the lap took until it was stopped or saved; 0 if it was killed before."""
    file = run.file(lap, "elapsed.json")
    try:
        seconds = float(read_json(file)["seconds"]) if file.is_file() else 0.0
    except (InputError, KeyError, TypeError, ValueError):  # only a number in the report is lost
        return 0.0
    return seconds if 0 <= seconds < math.inf else 0.0


def write_elapsed(run: RunDir, lap: int, seconds: float) -> None:
    """Write the time of a lap that is stopped, or whose training is saved."""
    write_json(run.file(lap, "elapsed.json"), {"seconds": seconds})
