"""Read access to a run for the app. Requests name laps and observations by number and never contain a path."""

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
from ..em.split import split
from ..observations import Observations, Problem
from ..observations.precision import in_float32
from ..priors import Prior
from ..report import pictures
from ..runs.lap_arrays import read_lap_array
from ..runs.rundir import RunDir
from .limits import whole


class Viewer:
    """The finished laps of a run, their priors, and the run's observations.

    Args:
        observations: A file written by `Observations.save`, for runs that got their observations from Python; such a
            run does not contain them.
        device: Device of the priors. Default: CUDA if it is available.
        run: A replacement for the run folder, for exported priors.
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
        """The last finished lap, −1 if there is none."""
        return self.run.laps_done()

    def _load(self, lap: int) -> Prior:
        return load(self.run.path, lap, self.device, "recipe")

    def check_lap(self, lap: Any) -> int:
        """Convert a request's lap to an integer.

        Raises:
            InputError: If it is not a finished lap.
        """
        last = self.last
        if last < 0:
            raise InputError("no lap of this run is finished yet; try again later")
        return whole(lap, "lap", 0, last)

    @property
    def problem(self) -> Problem | None:
        """The observations, from the file or the recipe's data source; None if they came from Python without a file."""
        if self._problem is None and self._file is not None:
            obs = Observations.load(self._file)
            self.run.require_observations(obs, f"those in {self._file}")
            self._problem = Problem(in_float32(obs))
        elif self._problem is None and (problem := self.run.problem()) is not None:
            self._problem = replace(problem, obs=in_float32(problem.obs))
        return self._problem

    def _split(self) -> tuple[list[int], list[int]]:
        """Indices of the training observations and of the held-out ones; both empty without observations."""
        if self.problem is None:
            return [], []
        count = len(self.problem.obs)
        train, held = split(count, min(self.recipe.watch.held_out, count - 1))
        return train.tolist(), held.tolist()

    def observation_choices(self) -> list[int]:
        """Indices of the observations that a visitor can choose: the held-out ones first, at most 256."""
        train, held = self._split()
        return [*held, *train[: 256 - len(held)]]

    def is_held_out(self, index: int) -> bool:
        """Whether an observation is held out from training."""
        return index in self._split()[1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of a sample."""
        if self.problem is not None:
            return self.problem.obs.x_shape
        return tuple(self.read_saved(0, "samples").shape[1:])

    @property
    def range(self) -> tuple[float, float]:
        """The values of x that are black and white."""
        if self._file is None and self.problem is not None and self.problem.range is not None:
            return self.problem.range
        return pictures.limits(self.read_saved(max(self.last, 0), "samples"))

    def read_saved(self, lap: int, name: str) -> np.ndarray:
        """Read an array that the run saved after a lap.

        Args:
            name: `samples`, `(n, *event)`, or `posterior`, `(draws, observations, *event)`.
        """
        if name not in ("samples", "posterior"):
            raise InputError(f"name must be 'samples' or 'posterior', got {name!r}")
        return read_lap_array(self.run, self.check_lap(lap), f"{name}.npy")
