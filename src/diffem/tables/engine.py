"""Learn the joint distribution of the rows of a matrix with gaps by EM, and draw missing values given the others.

The E-step is `conditional`: the input of the network includes the known entries of a row, so a sampling step takes one
forward pass. Every training example is a row with the gaps of another row.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..api import fit
from ..core.counting import count_of
from ..core.errors import RunWarning
from ..observations import Observations
from ..priors import Prior
from .calibration import spread_factors
from .drawing import NOISE, Draws, draw
from .gaps import Gaps
from .held_out import HiddenValues, Snap, choose

CANDIDATES = (0.0, 1 / 3, 2 / 3, 1.0)  # fractions of the laps after which priors are compared


@dataclass(frozen=True)
class Model:
    """A learned distribution of rows.

    Attributes:
        priors: The priors, which take turns in drawing.
        numeric: `(size,)`. Which coordinates are numbers.
        spread: Factors of the distance of draws from their expectation, which broadcast to a row.
        held_out: The held-out rows that `spread` was fitted to; None if there are none.
    """

    priors: tuple[Prior, ...] = ()
    numeric: np.ndarray | None = None
    spread: np.ndarray | float = 1.0
    held_out: HiddenValues | None = None

    def draw(self, z: np.ndarray, draws: int, *, steps: int, seed: int) -> Draws:
        """Draw from the posteriors of rows z `(n, ...)` with NaN for gaps, with calibrated spread."""
        drawn = draw(self.priors, z, draws, steps=steps, seed=seed, numeric=self.numeric)
        return drawn.scaled(np.asarray(self.spread))


@dataclass(frozen=True)
class Learner:
    """Makes runs from rows and compares their laps.

    Attributes:
        recipe: The recipe, from `default_recipe`.
        gaps: Chooses the values of held-out rows to hide.
        snap: Moves draws to the nearest possible values.
        numeric: `(size,)`. Which coordinates are numbers, whose spread is calibrated.
        changes: Recipe keys to change, such as `{"train.lr": 1e-4}`.
        out: The folder of the runs, which can be resumed; None for a temporary one.
        device: The device. Default: a GPU if there is one.
        progress: Whether to print a line per lap.
    """

    recipe: dict[str, Any]
    seed: int
    gaps: Gaps
    snap: Snap
    numeric: np.ndarray
    changes: dict[str, Any]
    out: str | Path | None = None
    device: str | None = None
    progress: bool = False

    def learn(self, parts: Sequence[tuple[np.ndarray, np.ndarray | None]]) -> Model:
        """Learn a model of rows `(n, ...)` with NaN for missing values.

        Args:
            parts: For each run the training rows, each with at least one value and scaled to about unit variance, and
                the held-out rows; None uses the last lap without calibration.
        """
        chosen_priors: list[list[Prior]] = []
        predicted: list[HiddenValues] = []
        for k, (rows, held_out) in enumerate(parts):
            folder = self.out if self.out is None or len(parts) == 1 else Path(self.out) / f"fold-{k}"
            priors = self._run(rows, folder, CANDIDATES if held_out is not None else (1.0,))
            if held_out is not None:
                priors, hidden_values = choose(priors, held_out, self.gaps, self.snap, self.numeric, self.seed)
                predicted += [hidden_values] if hidden_values is not None else []
            chosen_priors.append(priors)
        members = tuple(prior for some in zip_longest(*chosen_priors) for prior in some if prior is not None)
        if not predicted:
            return Model(members, self.numeric)
        all_hidden = HiddenValues.joined(predicted)
        spread = spread_factors(all_hidden, self.snap, self.numeric)
        if self.progress:
            factors = spread[self.numeric] if self.numeric.any() else np.ones(1)
            print(
                f"draws from {count_of(len(members), 'prior')}{' in turn' if len(members) > 1 else ''}; calibration "
                f"multiplies their spread by {factors.min():.2f} to {factors.max():.2f}",
                flush=True,
            )
        return Model(members, self.numeric, spread, all_hidden)

    def _run(self, rows: np.ndarray, out: str | Path | None, shares: Sequence[float]) -> list[Prior]:
        """Return the priors after some fractions of the laps of a run; 0 is the Gaussian start."""
        with tempfile.TemporaryDirectory(prefix="diffem-tables-") as temporary, warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)  # they concern priors; imputations are assessed separately
            run = fit(
                Observations(torch.from_numpy(rows), sigma=NOISE),
                self.recipe,
                temporary if out is None else out,
                self.seed,
                changes=self.changes,
                device=self.device,
                progress=False,
                report=out is not None,
                on_event=_print_lap if self.progress else None,
            )
            last, where = int(run.laps[-1]["lap"]), self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            return [run.load(lap, device=where) for lap in sorted({round(share * last) for share in shares})]


def _print_lap(event: str, data: dict[str, Any]) -> None:
    if event == "lap":
        loss = f"loss {data['loss']:.4f}, " if "loss" in data else "the Gaussian start, "
        print(f"lap {data['lap']}: {loss}{data['seconds']:.1f} s", flush=True)
