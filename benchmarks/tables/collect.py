"""Ranks of the methods over tables and mechanisms, and the result file."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from ..record import RESULTS, record

OURS = "diffem"


def kept_rivals() -> list[dict[str, Any]]:
    """The lines of rivals in the result file, which are of the first mask."""
    rows = json.loads((RESULTS / "tables.json").read_text())["rows"]
    return [{**row, "mask": 0} for row in rows if row["method"] != OURS and row["masks"] == 1]


def collect(path: Path, kept: list[dict[str, Any]], timing: Path | None = None) -> None:
    """Average the lines of a file over masks, rank the methods, and write `benchmarks/results/tables.json`.

    Args:
        path: The file, a line per job.
        kept: Lines of earlier runs, used where the file has none.
        timing: A file with the time of the fit of 20,000 × 16 values.
    """
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    keys = {_key(line) for line in lines}
    lines += [line for line in kept if _key(line) not in keys]
    rows = averaged(comparable(lines))
    figures = {"cases": float(len(complete_cases(rows, "rmse_out")))}
    for measure in ("rmse_out", "rmse_in", "mae_out", "crps_out"):
        figures |= ranks(rows, measure)
    ours = [row for row in rows if row["method"] == OURS]
    covered = {
        name: np.mean([row["coverage90_out"] for row in ours if row["table"] == name])
        for name in sorted({r["table"] for r in ours})
    }
    inside = [0.86 <= row["coverage90_out"] <= 0.94 for row in ours]
    figures |= {
        "mean_rank_rmse": figures[f"mean_rank_rmse_out_{OURS}"],
        "mean_rank_crps": figures[f"mean_rank_crps_out_{OURS}"],
        "tables": len(covered),
        "coverage90": float(np.mean(list(covered.values()))),
        "coverage90_least": float(min(covered.values())),
        "coverage90_most": float(max(covered.values())),
        "coverage90_inside": float(np.sum(inside)),
        "coverage90_cases": float(len(inside)),
        "jobs": len(lines),
    }
    if timing is not None:
        figures |= json.loads(timing.read_text())
    print(record("tables", {name: round(float(value), 4) for name, value in figures.items()}, rows))


def _key(line: dict[str, Any]) -> tuple[str, str, int, str]:
    return line["table"], line["mechanism"], line["mask"], line["method"]


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of masks that all methods of their table and mechanism were run with; all lines if there is none."""
    methods: dict[tuple[str, str], set[str]] = defaultdict(set)
    by_mask: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for table, mechanism, mask, method in map(_key, lines):
        methods[table, mechanism].add(method)
        by_mask[table, mechanism, mask].add(method)
    whole = {key for key, some in by_mask.items() if some == methods[key[:2]]}
    cases = {key[:2] for key in whole}
    return [line for line in lines if _key(line)[:3] in whole or _key(line)[:2] not in cases]


def averaged(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per table, mechanism and method: means over masks."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["table"], line["mechanism"], line["method"]].append(line)
    rows = []
    for (table, mechanism, method), some in sorted(groups.items()):
        texts = ("table", "mechanism", "method", "mask", "masks", "commit", "machine")
        numbers = [name for name in some[0] if name not in texts and all(name in line for line in some)]
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
