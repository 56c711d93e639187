"""A run to look at. No path comes from a request: a visitor names laps and observations by number."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.errors import InputError
from ..em.run import load
from ..em.watch import split
from ..observations import Observations, Problem
from ..observations.precision import in_float32
from ..priors import Prior
from ..report import pictures
from ..runs.rundir import RunDir
from ..runs.shown import read_shown
from .asked import whole


class Viewer:
    """A run as it is looked at: finished laps, their priors, the observations behind it.

    path: the run's folder. observations: a file written by `Observations.save`, for runs whose observations came from Python; such a run
    does not keep them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        observations: Path | None = None,
        device: torch.device | str | None = None,
        run: RunDir | None = None,
    ) -> None:
        self.run = RunDir(path) if run is None else run
        self.recipe = self.run.recipe()
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self._file = observations
        self._problem: Problem | None = None
        self.prior: Callable[[int], Prior] = lru_cache(maxsize=4)(self._load)

    @property
    def last(self) -> int:
        """The last finished lap, −1 while there is none."""
        return self.run.laps_done()

    def _load(self, lap: int) -> Prior:
        return load(self.run.path, lap, self.device, "recipe")

    def check_lap(self, lap: Any) -> int:
        last = self.last
        if last < 0:
            raise InputError("no lap of this run is finished yet; look again in a while")
        return whole(lap, "lap", 0, last)

    @property
    def problem(self) -> Problem | None:
        """The observations, from the file or the recipe's source; None where the run was given them and they are not here."""
        if self._problem is None and self._file is not None:
            obs = Observations.load(self._file)
            self.run.require_observations(obs, f"those in {self._file}")
            self._problem = Problem(in_float32(obs))
        elif self._problem is None and (problem := self.run.problem()) is not None:
            self._problem = replace(problem, obs=in_float32(problem.obs))
        return self._problem

    def shown(self) -> list[int]:
        """Observations to choose from: the held-out ones first, which training never saw."""
        if self.problem is None:
            return []
        train, held = split(len(self.problem.obs), min(self.recipe.watch.held_out, len(self.problem.obs) - 1))
        return [*held.tolist(), *train[: 256 - len(held)].tolist()]

    def is_held_out(self, index: int) -> bool:
        """Whether an observation was kept from training."""
        if self.problem is None:
            return False
        _, held = split(len(self.problem.obs), min(self.recipe.watch.held_out, len(self.problem.obs) - 1))
        return index in held.tolist()

    @property
    def event_shape(self) -> tuple[int, ...]:
        if self.problem is not None:
            return self.problem.obs.x_shape
        return tuple(self.stored(0, "samples").shape[1:])

    @property
    def range(self) -> tuple[float, float]:
        """The values of x that are black and white."""
        if self._file is None and self.problem is not None and self.problem.range is not None:
            return self.problem.range
        return pictures.limits(self.stored(max(self.last, 0), "samples"))

    def stored(self, lap: int, name: str) -> np.ndarray:
        """What the run itself drew after a lap: `samples` `(n, *event)` or `posterior` `(draws, observations, *event)`."""
        if name not in ("samples", "posterior"):
            raise InputError(f"a lap keeps samples and posterior, not {name!r}")
        return read_shown(self.run, self.check_lap(lap), f"{name}.npy")
