"""Imputers of tables and series."""

from __future__ import annotations

from typing import Any

from ..tables.collect import averaged, comparable
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
    figures, rows = result["figures"], averaged(comparable(result["rows"]))
    names = [name for name in METHODS if f"mean_rank_rmse_out_{name}" in figures]
    ranks = [
        [
            METHODS[name],
            *(f"{figures[f'mean_rank_{m}_{name}']:.2f}" for m in ("rmse_out", "rmse_in", "mae_out", "crps_out")),
            f"{figures[f'downstream_{name}']:.1%}",
        ]
        for name in names
    ]
    header = ["mean rank", "RMSE, new rows", "RMSE, rows of the fit", "MAE, new rows", "CRPS, new rows", "accuracy"]
    parts = [table(header, ranks)]
    found = {(row["table"], row["mechanism"], row["method"]): row for row in rows}
    for mechanism, title in MECHANISMS.items():
        cases = sorted({row["table"] for row in rows if row["mechanism"] == mechanism})
        cases = [case for case in cases if all((case, mechanism, name) in found for name in names)]
        lines = [_line(case, [found[case, mechanism, name] for name in names]) for case in cases]
        header = [f"{title}: RMSE / CRPS", *(METHODS[name] for name in names), "its coverage", "masks, commit"]
        parts.append(table(header, lines))
    parts.append(_categories(rows, names))
    parts += _sentences(figures)
    machines = sorted({row["machine"] for row in rows if "machine" in row})
    return "\n\n".join([*parts, source(result), f"Measured on {' and '.join(machines)}."])


def _sentences(figures: dict[str, float]) -> list[str]:
    """Coverage and time."""
    inside, cases = (int(figures[f"coverage90_{name}"]) for name in ("inside", "cases"))
    found = [
        f"90 % intervals hold {figures['coverage90_least']:.1%} to {figures['coverage90_most']:.1%} of the missing "
        "values of a table, over all its masks. By table and mechanism they hold 86 to 94 % in "
        f"{inside} of {cases} cases."
    ]
    for name, bound in (("fit_seconds_20000x16", ""), ("fit_seconds_20000x16_at_most", "at most ")):
        if name in figures:
            found.append(f"A fit of 20,000 × 16 values (letter) on two cores took {bound}{figures[name]:.0f} s.")
    return found


def _line(case: str, rows: list[dict[str, Any]]) -> list[str]:
    """Errors and scores of a case, the best in bold; coverage and commit of the last method."""
    cells = []
    for row in rows:
        values = (row[name] for name in ("rmse_out", "crps_out"))
        least = (min(other[name] for other in rows) for name in ("rmse_out", "crps_out"))
        cells.append(
            " / ".join(f"**{v:.3f}**" if v == low else f"{v:.3f}" for v, low in zip(values, least, strict=True))
        )
    ours = rows[-1]
    return [case, *cells, f"{ours['coverage90_out']:.0%}", f"{ours['masks']}, {ours['commit']}"]


def _categories(rows: list[dict[str, Any]], names: list[str]) -> str:
    """Accuracy and log-loss of imputed categories."""
    some = {(r["table"], r["mechanism"], r["method"]): r for r in rows if "accuracy_out" in r}
    cases = sorted({key[:2] for key in some if all((*key[:2], name) in some for name in names)})
    lines = [
        [
            f"{case}, {MECHANISMS[mechanism]}",
            *(
                f"{some[case, mechanism, n]['accuracy_out']:.1%} / {some[case, mechanism, n]['log_loss_out']:.2f}"
                for n in names
            ),
        ]
        for case, mechanism in cases
    ]
    return table(["categories: accuracy / log-loss", *(METHODS[name] for name in names)], lines)


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
