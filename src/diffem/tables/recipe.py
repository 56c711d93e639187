"""The recipe of an imputer's runs, chosen by the number of rows."""

from __future__ import annotations

from typing import Any

import numpy as np

EPOCHS = 800  # passes over the rows, in all laps together
SMALL = 1000  # number of rows below which a table is small
SMALL_EPOCHS = 240  # passes over the rows of a small table: more of them overfit
LEAST = 40  # smallest number of rows for several runs
FOLDS = 4
RATE = 1e-3  # first learning rate


def default_folds(rows: int) -> int:
    """The number of runs: several for small tables, in which a tenth of the rows is too few to compare laps."""
    return FOLDS if LEAST <= rows < SMALL else 1


def default_laps(rows: int) -> int:
    """The number of laps: small tables need fewer."""
    return 6 if rows < SMALL else 12


def default_recipe(rows: int, laps: int, steps: int | None = None) -> dict[str, Any]:
    """Make the recipe for a matrix with a given number of rows.

    The number of passes over the rows is about the same for all tables: with a fixed number of steps, small tables
    would be overfitted. Small tables have smaller batches, several draws per row, dropout and fewer passes.

    Args:
        steps: Training steps per lap. Default: `EPOCHS` passes over the rows in all laps together.
    """
    small = rows < SMALL
    batch = 128 if rows < 2000 else 256 if rows < 8000 else 512
    if steps is None:
        steps = int(np.clip((SMALL_EPOCHS if small else EPOCHS) * rows / (batch * laps), 130 if small else 80, 1000))
    return {
        "name": "tables",
        "data": {"source": "given"},
        "laps": laps,
        "sigma_min": 0.01,
        "sigma_max": 20.0,
        "gaussian": {"rounds": 64, "tolerance": 1e-5},
        "network": {"kind": "residual", "hidden": [256, 256, 256], "dropout": 0.25 if small else 0.0},
        "e_step": {
            "method": "conditional",
            "steps": 16,
            "draws": int(np.clip(4000 // rows, 1, 4)),
            "fresh": 1.0 if rows < 4000 else 0.5,
            "shard": 65536,
            "keep": 1,
        },
        "train": {
            "steps": steps,
            "batch": batch,
            **_rates(1, laps),
            "schedule": "linear",
            "noise": {"law": "lognormal", "mean": 0.3, "std": 1.2},
            "ema": 0.995,
            "measured": 0.8,
            "conditioned": 0.9,
            "restart": False,
        },
        "stages": [{"lap": lap, "train": _rates(lap, laps)} for lap in range(2, laps + 1)],
        "watch": {"held_out": 0, "draws": 2, "samples": 2},
    }


def _rates(lap: int, laps: int) -> dict[str, float]:
    """The learning rate at both ends of a lap: it decreases linearly to 0 over all laps."""
    return {"lr": RATE * (1 - (lap - 1) / laps), "final_lr": RATE * (1 - lap / laps)}
