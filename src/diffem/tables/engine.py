"""Learn the joint distribution of a matrix with gaps by EM, and draw what is missing in a row given what is not.

The E-step is `conditional`: one network denoises rows of which some entries are known, so that a draw takes one forward
pass per step. Every training example shows it a row through the gaps of another one.
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
from ..core.errors import RunWarning
from ..observations import Observations
from ..priors import Prior
from .calibration import spread_factors
from .drawing import NOISE, Draws, draw
from .gaps import Gaps
from .held_out import HeldOut, Snap, choose

CANDIDATES = (0.0, 1 / 3, 2 / 3, 1.0)  # parts of a run after which its prior is compared with the others


@dataclass(frozen=True)
class Model:
    """A learned distribution of rows.

    Attributes:
        priors: Draws are taken from them in turn.
        numeric: `(size,)`, which coordinates hold numbers.
        spread: Factors of the distance of draws from their expectation, which broadcast to a row.
        held_out: What `spread` was fitted to; None if no rows were held out.
    """

    priors: tuple[Prior, ...] = ()
    numeric: np.ndarray | None = None
    spread: np.ndarray | float = 1.0
    held_out: HeldOut | None = None

    def draw(self, z: np.ndarray, draws: int, *, steps: int, seed: int) -> Draws:
        """Posterior draws of rows z `(n, ...)` with NaN for gaps, with calibrated spread."""
        drawn = draw(self.priors, z, draws, steps=steps, seed=seed, numeric=self.numeric)
        return drawn.scaled(np.asarray(self.spread))


@dataclass(frozen=True)
class Learner:
    """How runs are made from rows, and compared.

    Attributes:
        recipe: As `default_recipe` makes it.
        seed: Of all random numbers.
        gaps: Which values of held-out rows to hide.
        snap: Moves draws to the nearest ones that stand for possible values.
        numeric: `(size,)`, which coordinates hold numbers, whose spread is calibrated.
        changes: Keys of the recipe to set, such as `{"train.lr": 1e-4}`.
        out: The folder of the runs, which can be resumed; a temporary one if None.
        device: Where to compute; a GPU if there is one.
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
        """The model of rows `(n, ...)`, NaN where a value is missing.

        Args:
            parts: For each run the rows to learn from, each with a value and columns of about unit variance, and rows
                that are held out, or None: then the last lap is taken as it is.
        """
        chosen: list[list[Prior]] = []
        predicted: list[HeldOut] = []
        for k, (rows, held_out) in enumerate(parts):
            folder = self.out if self.out is None or len(parts) == 1 else Path(self.out) / f"fold-{k}"
            priors = self._run(rows, folder, CANDIDATES if held_out is not None else (1.0,))
            if held_out is not None:
                priors, found = choose(priors, held_out, self.gaps, self.snap, self.numeric, self.seed)
                predicted += [found] if found is not None else []
            chosen.append(priors)
        members = tuple(prior for some in zip_longest(*chosen) for prior in some if prior is not None)
        if not predicted:
            return Model(members, self.numeric)
        held = HeldOut.joined(predicted)
        spread = spread_factors(held, self.snap, self.numeric)
        if self.progress:
            factors = spread[self.numeric] if self.numeric.any() else np.ones(1)
            print(
                f"draws from {len(members)} priors in turn; calibration multiplies their spread by "
                f"{factors.min():.2f} to {factors.max():.2f}",
                flush=True,
            )
        return Model(members, self.numeric, spread, held)

    def _run(self, rows: np.ndarray, out: str | Path | None, shares: Sequence[float]) -> list[Prior]:
        """The priors after some shares of the laps of a run; 0 is the Gaussian start."""
        with tempfile.TemporaryDirectory(prefix="diffem-tables-") as temporary, warnings.catch_warnings():
            warnings.simplefilter("ignore", RunWarning)  # about priors; imputations are assessed by themselves
            run = fit(
                Observations(torch.from_numpy(rows), sigma=NOISE),
                self.recipe,
                temporary if out is None else out,
                self.seed,
                changes=self.changes,
                device=self.device,
                progress=False,
                report=out is not None,
                say=_print_lap if self.progress else None,
            )
            last, where = int(run.laps[-1]["lap"]), self.device or ("cuda" if torch.cuda.is_available() else "cpu")
            return [run.load(lap, device=where) for lap in sorted({round(share * last) for share in shares})]


def _print_lap(event: str, data: dict[str, Any]) -> None:
    if event == "lap":
        loss = f"loss {data['loss']:.4f}, " if "loss" in data else "the Gaussian start, "
        print(f"lap {data['lap']}: {loss}{data['seconds']:.1f} s", flush=True)
