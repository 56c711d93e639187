"""Ranks of the methods over tables and mechanisms, and the result file."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ..record import record

OURS = "diffem"


def collect(path: Path) -> None:
    """Average the lines of a file over masks, rank the methods, and write `benchmarks/results/tables.json`."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    rows = averaged(lines)
    figures = {"cases": float(len(complete_cases(rows, "rmse_out")))}
    for measure in ("rmse_out", "rmse_in", "mae_out", "crps_out"):
        figures |= ranks(rows, measure)
    ours = [row for row in rows if row["method"] == OURS]
    covered = {
        name: np.mean([row["coverage90_out"] for row in ours if row["table"] == name])
        for name in sorted({r["table"] for r in ours})
    }
    figures |= {
        "mean_rank_rmse": figures[f"mean_rank_rmse_out_{OURS}"],
        "mean_rank_crps": figures[f"mean_rank_crps_out_{OURS}"],
        "tables": len(covered),
        "coverage90": float(np.mean(list(covered.values()))),
        "coverage90_least": float(min(covered.values())),
        "coverage90_most": float(max(covered.values())),
        "jobs": len(lines),
    }
    print(record("tables", {name: round(float(value), 4) for name, value in figures.items()}, rows))


def averaged(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per table, mechanism and method: means over masks."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["table"], line["mechanism"], line["method"]].append(line)
    rows = []
    for (table, mechanism, method), some in sorted(groups.items()):
        texts = ("table", "mechanism", "method", "mask", "commit", "machine")
        numbers = [name for name in some[0] if name not in texts]
        means = {name: round(float(np.mean([line[name] for line in some])), 4) for name in numbers}
        origin = {name: some[-1][name] for name in ("commit", "machine") if name in some[-1]}
        rows.append({"table": table, "mechanism": mechanism, "method": method, "masks": len(some), **means, **origin})
    return rows


def complete_cases(rows: list[dict[str, Any]], measure: str) -> list[dict[str, float]]:
    """A measure by method, for every table and mechanism that all methods were run on."""
    methods = {row["method"] for row in rows}
    cases: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for row in rows:
        cases[row["table"], row["mechanism"]][row["method"]] = row[measure]
    return [case for case in cases.values() if case.keys() == methods]


def ranks(rows: list[dict[str, Any]], measure: str) -> dict[str, float]:
    """The mean rank of every method by a measure, 1 the best, over the cases that all methods were run on."""
    methods = sorted({row["method"] for row in rows})
    cases = complete_cases(rows, measure)
    placed = [np.argsort(np.argsort([case[method] for method in methods])) + 1 for case in cases]
    means = np.mean(placed, 0) if placed else np.full(len(methods), np.nan)
    return {f"mean_rank_{measure}_{method}": float(mean) for method, mean in zip(methods, means, strict=True)}
