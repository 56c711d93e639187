"""Learn the joint distribution of a matrix with gaps by EM, and draw what is missing in a row given what is not.

The E-step is `conditional`: one network denoises rows of which some entries are known, so that a draw takes one forward
pass per step. Every training example shows it a row through the gaps of another one.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from ..api import fit
from ..core.errors import RunWarning
from ..observations import Observations
from ..priors import DiffusionPrior, GaussianPrior, Prior
from .scores import coverage, crps

Gaps = Callable[[tuple[int, ...], np.random.RandomState], np.ndarray]  # shape → which values are missing, of that shape

NOISE = 0.03  # standard deviation of an entry's noise, relative to that of its column
EPOCHS = 800  # passes over the rows, in all laps together
RATE = 1e-3  # of learning, at first
ADDRESSES = 1 << 32
RARE = 0.1  # share of missing values below which the gaps of a column are too rare to learn from
HIDDEN = 0.3  # share of the values that is hidden, in additional rows and to compare laps
CANDIDATES = (0.0, 0.25, 0.5, 0.75, 1.0)  # parts of a run after which its prior is compared with the others
LEAST_HELD_OUT, MOST_HELD_OUT = 10, 256  # rows to compare laps with
SPREADS = (1.0, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5)  # factors of the standard deviations of a Gaussian
SCORED = 8  # draws behind such a comparison


def default_recipe(rows: int, laps: int, steps: int | None = None) -> dict[str, Any]:
    """The recipe for a matrix of so many rows.

    The number of passes over the rows is about the same for all tables: many more of them would learn the rows of a
    small table by heart. Small tables have smaller batches, several draws per row, dropout and half of the passes.

    Args:
        rows: Of the matrix.
        laps: Of EM.
        steps: Training steps per lap; `EPOCHS` passes over the rows in all laps together if None.
    """
    small = rows < 1000
    batch = 128 if rows < 2000 else 256 if rows < 8000 else 512
    if steps is None:
        steps = int(np.clip((EPOCHS / 2 if small else EPOCHS) * rows / (batch * laps), 80, 1000))
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
    """The learning rate at both ends of a lap: it falls linearly to 0 through all laps."""
    return {"lr": RATE * (1 - (lap - 1) / laps), "final_lr": RATE * (1 - lap / laps)}


def learn(
    z: np.ndarray,
    recipe: dict[str, Any],
    *,
    seed: int,
    held_out: np.ndarray | None = None,
    snapped: Callable[[np.ndarray], np.ndarray] = lambda draws: draws,
    gaps: Gaps | None = None,
    changes: dict[str, Any] | None = None,
    out: str | Path | None = None,
    device: str | None = None,
    progress: bool = False,
) -> list[Prior]:
    """The priors of rows z `(n, ...)`, NaN where a value is missing, to draw from in turn: those of one or two laps.

    A table without much structure is learned by heart by late laps, and a small one that is nearly Gaussian is
    described best by the Gaussian start. Which lap, or pair of laps, predicts hidden values best is measured on
    held-out rows.

    Args:
        z: The matrix, each column of about unit variance; every row has a value.
        recipe: As `default_recipe` makes it.
        seed: Of all random numbers.
        held_out: Rows that are not in z; without them the last lap is taken.
        snapped: Moves draws to the nearest ones that stand for possible values.
        gaps: Which values of held-out rows to hide; each with probability `HIDDEN` if None.
        changes: Keys of the recipe to set, such as `{"train.lr": 1e-4}`.
        out: The folder of the run, which can be resumed; a temporary one if absent.
        device: Where to compute; a GPU if there is one.
        progress: Whether to print a line per lap.
    """
    with tempfile.TemporaryDirectory(prefix="diffem-tables-") as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore", RunWarning)  # about priors; imputations are assessed by themselves
        run = fit(
            Observations(torch.from_numpy(z), sigma=NOISE),
            recipe,
            temporary if out is None else out,
            seed,
            changes=changes,
            device=device,
            progress=False,
            report=out is not None,
            say=_print_lap if progress else None,
        )
        last, where = int(run.laps[-1]["lap"]), device or ("cuda" if torch.cuda.is_available() else "cpu")
        if held_out is None:
            return [run.load(last, device=where)]
        laps = sorted({round(share * last) for share in CANDIDATES})  # 0 is the Gaussian start
        priors = [run.load(lap, device=where) for lap in laps]
    scores = held_out_scores(priors, held_out, seed, snapped, gaps or scattered_gaps)
    best = min(scores, key=lambda chosen: scores[chosen])
    if progress:
        found = ", ".join(
            f"{' and '.join(str(laps[k]) for k in chosen)}: {score:.4f}" for chosen, score in scores.items()
        )
        print(f"CRPS of hidden values of held-out rows by lap: {found}", flush=True)
    return [priors[k] for k in best]


def held_out_scores(
    priors: list[Prior],
    z: np.ndarray,
    seed: int,
    snapped: Callable[[np.ndarray], np.ndarray],
    gaps: Gaps,
) -> dict[tuple[int, ...], float]:
    """The CRPS of predictions of hidden values of z `(n, ...)`, by each prior and by draws of each two in turn.

    A Gaussian prior in the list is replaced by one that is as wide as its errors on z (`widened`).
    """
    z = np.concatenate([z] * max(1, MOST_HELD_OUT // len(z)))  # few rows with several patterns
    random = np.random.RandomState(seed % (1 << 32))
    hidden = ~np.isnan(z) & gaps(z.shape, random)
    shown = np.where(hidden, np.nan, z).astype(np.float32)
    for k, prior in enumerate(priors):
        if isinstance(prior, GaussianPrior):
            priors[k] = widened(prior, draw([prior], shown, SCORED, steps=16, seed=seed)[:, hidden], z[hidden])
    draws = [snapped(draw([prior], shown, SCORED, steps=16, seed=seed))[:, hidden] for prior in priors]
    sets = [(k,) for k in range(len(priors))] + list(combinations(range(len(priors)), 2))
    return {chosen: crps(np.concatenate([draws[k] for k in chosen]), z[hidden]) for chosen in sets}


def widened(prior: GaussianPrior, draws: np.ndarray, x: np.ndarray) -> GaussianPrior:
    """The prior with samples spread by the first of `SPREADS` with which draws `(k, n)` cover 90 % of x `(n,)`.

    A covariance fitted to few rows is too sure of what it predicts. A larger one, with the noise of values as before,
    has nearly the same posterior means and wider posteriors.
    """
    mean = draws.mean(0)
    factor = next((s for s in SPREADS if coverage(mean + s * (draws - mean), x) >= 0.9), SPREADS[-1])
    cov = prior.covariance().scaled(factor)
    return GaussianPrior(prior.mean, cov, sigma_min=prior.sigma_min, sigma_max=prior.sigma_max)


def scattered_gaps(shape: tuple[int, ...], random: np.random.RandomState) -> np.ndarray:
    """Every value is missing with probability `HIDDEN`."""
    return random.random_sample(shape) < HIDDEN


def _print_lap(event: str, data: dict[str, Any]) -> None:
    if event == "lap":
        loss = f"loss {data['loss']:.4f}, " if "loss" in data else "the Gaussian start, "
        print(f"lap {data['lap']}: {loss}{data['seconds']:.1f} s", flush=True)


def hold_out(z: np.ndarray, random: np.random.RandomState) -> tuple[np.ndarray, np.ndarray | None]:
    """The rows to learn from, and a tenth of z `(n, ...)` to compare laps with, or None if that is too few."""
    count = min(len(z) // 10, MOST_HELD_OUT)
    if count < LEAST_HELD_OUT:
        return z, None
    order = random.permutation(len(z))
    return z[order[count:]], z[order[:count]]


def with_more_gaps(z: np.ndarray, places: Sequence[slice], random: np.random.RandomState) -> np.ndarray:
    """The rows z `(n, size)`, and copies of half of them with further gaps if those of some column are rare.

    Args:
        z: The matrix, NaN where a value is missing.
        places: The coordinates of each column, which are missing together.
        random: Chooses rows and values.
    """
    if np.isnan(z).mean(0).min() >= RARE:
        return z
    copies = z[random.permutation(len(z))[: max(1, len(z) // 2)]]
    for place in places:
        copies[random.random_sample(len(copies)) < HIDDEN, place] = np.nan
    return np.concatenate([z, copies[~np.isnan(copies).all(1)]])


@torch.no_grad()
def draw(priors: Sequence[Prior], z: np.ndarray, draws: int, *, steps: int, seed: int) -> np.ndarray:
    """Posterior draws `(draws, n, ...)` of rows z `(n, ...)` with NaN for gaps, by the priors in turn.

    The random numbers of a row follow from its values: a row is imputed in the same way in any table and at any place.
    """
    if not z[0].size:  # no column varies
        return np.empty((draws, *z.shape), dtype=np.float32)
    index = torch.from_numpy(row_addresses(z))
    obs = Observations(torch.from_numpy(z), sigma=NOISE)
    x = np.empty((draws, *z.shape), dtype=np.float32)
    for first, prior in enumerate(priors):
        options: dict[str, Any] = {"method": "conditional", "check": False} if isinstance(prior, DiffusionPrior) else {}
        posterior = prior.posterior(obs.to(prior.mean.device), **options)
        count = len(range(first, draws, len(priors)))
        if count:
            drawn = posterior.sample(count, steps=steps, sampler="ddpm2", seed=seed, index=index, progress=False)
            x[first :: len(priors)] = drawn.cpu().numpy()
    if not np.isfinite(x).all():
        raise FloatingPointError(f"{int((~np.isfinite(x)).sum())} imputed values are not finite; fit with a lower lr")
    return x


def row_addresses(z: np.ndarray) -> np.ndarray:
    """A number below 2³² for every row of z `(n, ...)`, from its values and, for equal rows, their order."""
    frame = pd.DataFrame(np.nan_to_num(z.reshape(len(z), -1), nan=1e30))
    hashes = pd.util.hash_pandas_object(frame, index=False)
    repeats = hashes.groupby(hashes).cumcount().to_numpy()
    return ((hashes.to_numpy() % ADDRESSES).astype(np.int64) + 40503 * repeats) % ADDRESSES
