"""Imputers of tables and series."""

from __future__ import annotations

from typing import Any

import numpy as np

from .parts import source, table

METHODS = {
    "mean": "mean",
    "knn": "KNNImputer",
    "ridge": "IterativeImputer, BayesianRidge",
    "trees": "IterativeImputer, 40 extra trees",
    "mice-ridge": "20 × IterativeImputer, `sample_posterior`",
    "mice-forest": "miceforest, 5 chains",
    "diffem": "DiffusionImputer",
}
MECHANISMS = {"mcar": "MCAR", "mar": "MAR", "mnar": "MNAR"}
SERIES = {
    "linear": "linear interpolation",
    "kalman": "Kalman smoothing, local linear trend",
    "iterative": "IterativeImputer on windows",
    "diffem": "SeriesImputer",
}


def tables(result: dict[str, Any]) -> str:
    """Mean ranks, then errors per table and mechanism."""
    figures, rows = result["figures"], result["rows"]
    names = [name for name in METHODS if f"mean_rank_rmse_out_{name}" in figures]
    ranks = [
        [
            METHODS[name],
            *(f"{figures[f'mean_rank_{m}_{name}']:.2f}" for m in ("rmse_out", "rmse_in", "mae_out", "crps_out")),
        ]
        for name in names
    ]
    header = ["mean rank", "RMSE, new rows", "RMSE, rows of the fit", "MAE, new rows", "CRPS, new rows"]
    parts = [table(header, ranks)]
    found = {(row["table"], row["mechanism"], row["method"]): row for row in rows}
    for mechanism, title in MECHANISMS.items():
        cases = sorted({row["table"] for row in rows if row["mechanism"] == mechanism})
        lines = [_line(case, [found.get((case, mechanism, name)) for name in names]) for case in cases]
        parts.append(table([f"{title}: RMSE / CRPS", *(METHODS[name] for name in names), "coverage", "seconds"], lines))
    origins = sorted({f"commit {row['commit']}, {row['machine']}" for row in rows if "commit" in row})
    return "\n\n".join([*parts, source(result), f"Measured with {'; '.join(origins)}."])


def _line(case: str, rows: list[dict[str, Any] | None]) -> list[str]:
    errors = [np.inf if row is None else row["rmse_out"] for row in rows]
    scores = [np.inf if row is None else row["crps_out"] for row in rows]
    cells = []
    for row, error, score in zip(rows, errors, scores, strict=True):
        shown = (f"**{v:.3f}**" if v == min(every) else f"{v:.3f}" for v, every in ((error, errors), (score, scores)))
        cells.append("" if row is None else " / ".join(shown))
    ours = rows[-1]
    last = ["", ""] if ours is None else [f"{ours['coverage90_out']:.0%}", f"{ours['seconds']:.0f}"]
    return [case, *cells, *last]


def series(result: dict[str, Any]) -> str:
    """Errors of imputers of series."""
    rows = [
        [
            SERIES[row["method"]],
            f"{row['rmse_out']:.3f}",
            f"{row['mae_out']:.3f}",
            f"{row['crps_out']:.3f}" if "crps_out" in row else "",
            f"{row['coverage90_out']:.0%}" if "coverage90_out" in row else "",
            f"{row['seconds']:.0f} s",
        ]
        for row in result["rows"]
    ]
    header = ["BasicMotions, 30 % missing in blocks", "RMSE", "MAE", "CRPS", "coverage of 90 % intervals", "fit"]
    return "\n\n".join([table(header, rows), source(result)])
