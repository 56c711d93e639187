"""Ranks of the methods over tables and mechanisms, and the result file."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

from ..record import RESULTS, record

OURS = "diffem"


def known() -> list[dict[str, Any]]:
    """The lines of the result file, one per job."""
    return json.loads((RESULTS / "tables.json").read_text())["rows"]


def read(path: Path) -> list[dict[str, Any]]:
    """The lines of a file that jobs were written to; none if there is no such file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()] if path.is_file() else []


def key(line: dict[str, Any]) -> tuple[str, str, int, str]:
    """The job of a line."""
    return line["table"], line["mechanism"], line["mask"], line["method"]


def collect(paths: list[Path], timing: Path | None = None) -> None:
    """Add lines to `benchmarks/results/tables.json`, or replace those of the same jobs, and rank the methods.

    Args:
        paths: Files with a line per job.
        timing: A file with the time of the fit of 20,000 × 16 values; the one known so far is kept if None.
    """
    lines = {key(line): line for some in (known(), *map(read, paths)) for line in some}
    rows = [lines[job] for job in sorted(lines)]
    old = json.loads((RESULTS / "tables.json").read_text())["figures"]
    times = {name: value for name, value in old.items() if "seconds" in name}
    if timing is not None:
        times = json.loads(timing.read_text())
    print(record("tables", {name: round(float(value), 4) for name, value in (figures(rows) | times).items()}, rows))


def figures(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Mean ranks of all methods, the mean accuracy of classifiers, and the coverage of ours.

    Coverage is averaged by table, and by case: a table and a mechanism.
    """
    rows = averaged(comparable(lines))
    found = {"cases": float(len(complete_cases(rows, "rmse_out")))}
    for measure in ("rmse_out", "rmse_in", "mae_out", "crps_out"):
        found |= ranks(rows, measure)
    accuracies = complete_cases(rows, "downstream")
    for method in sorted({row["method"] for row in rows}):
        found[f"downstream_{method}"] = float(np.mean([case[method] for case in accuracies]))
    ours = [line for line in lines if line["method"] == OURS]
    by_case, by_table = (
        _means(ours, lambda line: (line["table"], line["mechanism"])),
        _means(ours, lambda line: line["table"]),
    )
    return found | {
        "mean_rank_rmse": found[f"mean_rank_rmse_out_{OURS}"],
        "mean_rank_crps": found[f"mean_rank_crps_out_{OURS}"],
        "tables": len(by_table),
        "coverage90": float(np.mean(by_table)),
        "coverage90_least": float(min(by_table)),
        "coverage90_most": float(max(by_table)),
        "coverage90_tables_inside": _inside(by_table),
        "coverage90_inside": _inside(by_case),
        "coverage90_cases": float(len(by_case)),
        "jobs": len(lines),
    }


def _means(lines: list[dict[str, Any]], group: Callable[[dict[str, Any]], Any]) -> list[float]:
    """The mean coverage of every group of lines."""
    groups = defaultdict(list)
    for line in lines:
        groups[group(line)].append(line["coverage90_out"])
    return [float(np.mean(some)) for some in groups.values()]


def _inside(coverages: list[float]) -> float:
    """How many lie in the range that 90 % intervals should have."""
    return float(sum(0.86 <= coverage <= 0.94 for coverage in coverages))


def comparable(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines of masks that all methods of their table and mechanism were run with; all lines if there is none."""
    methods: dict[tuple[str, str], set[str]] = defaultdict(set)
    by_mask: dict[tuple[str, str, int], set[str]] = defaultdict(set)
    for table, mechanism, mask, method in map(key, lines):
        methods[table, mechanism].add(method)
        by_mask[table, mechanism, mask].add(method)
    whole = {job for job, some in by_mask.items() if some == methods[job[:2]]}
    cases = {job[:2] for job in whole}
    return [line for line in lines if key(line)[:3] in whole or key(line)[:2] not in cases]


def averaged(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row per table, mechanism and method: means over masks."""
    groups = defaultdict(list)
    for line in lines:
        groups[line["table"], line["mechanism"], line["method"]].append(line)
    rows = []
    for (table, mechanism, method), some in sorted(groups.items()):
        texts = ("table", "mechanism", "method", "mask", "commit", "machine")
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
    placed = [rankdata([case[method] for method in methods]) for case in cases]  # equal methods share their ranks
    means = np.mean(placed, 0) if placed else np.full(len(methods), np.nan)
    return {f"mean_rank_{measure}_{method}": float(mean) for method, mean in zip(methods, means, strict=True)}
