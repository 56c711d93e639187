"""One job: a method on a table with one mask, measured on rows it was fitted to and on rows it never saw."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..record import commit, machine
from .data import Table, load
from .masks import missing
from .measures import Imputation, measure
from .methods import OneHot, complete

SHARE = 0.3  # missing
TRAIN = 0.7  # share of the rows that methods are fitted to
MEASURED = 2000  # rows of each kind that are completed and measured, at most


@dataclass(frozen=True)
class Job:
    table: str
    mechanism: str
    mask: int
    method: str

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.table, self.mechanism, self.mask, self.method


def run(job: Job, folder: Path | None) -> dict[str, Any]:
    """The figures of a job."""
    table = load(job.table, folder)
    gone = missing(table.values, job.mechanism, SHARE, job.mask)
    order = np.random.default_rng(job.mask).permutation(len(gone))
    cut = round(TRAIN * len(gone))
    train, test = order[:cut], order[cut:]
    truth = standardise(table, np.where(gone, np.nan, table.values)[train])
    visible = np.where(gone, np.nan, truth)
    seen, unseen = train[:MEASURED], test[:MEASURED]
    began = time.monotonic()
    completed = complete(job.method, table, visible[train], [visible[seen], visible[unseen]], job.mask)
    seconds = time.monotonic() - began
    row: dict[str, Any] = {**asdict(job), "rows": len(train), "columns": gone.shape[1], "seconds": round(seconds, 1)}
    row |= {"commit": commit(), "machine": machine()}
    for name, rows, imputed in (("in", seen, completed[0]), ("out", unseen, completed[1])):
        figures = measure(imputed, truth[rows], gone[rows], table.categorical)
        row |= {f"{key}_{name}": round(value, 5) for key, value in figures.items()}
    row["downstream"] = round(_downstream(table, truth, gone, seen, unseen, completed), 5)
    return row


def standardise(table: Table, visible: np.ndarray) -> np.ndarray:
    """The table in units of the mean and standard deviation of the values that were visible; categories stay codes."""
    mean, std = np.nanmean(visible, 0), np.nanstd(visible, 0)
    std = np.where(std > 0, std, 1.0)
    return np.where(table.categorical, table.values, (table.values - mean) / std)


def _downstream(
    table: Table, truth: np.ndarray, gone: np.ndarray, seen: np.ndarray, unseen: np.ndarray, completed: list[Imputation]
) -> float:
    """The accuracy of a classifier that is trained on completed rows, for completed rows it never saw."""
    from sklearn.ensemble import RandomForestClassifier

    code = OneHot(table)
    parts = [
        code.encode(imputed.completed(truth[rows], gone[rows], table.categorical))
        for rows, imputed in zip((seen, unseen), completed, strict=True)
    ]
    forest = RandomForestClassifier(100, random_state=0, n_jobs=1).fit(parts[0], table.target[seen])
    return float(forest.score(parts[1], table.target[unseen]))
