"""Outcomes of faults at random times: `python -m benchmarks.chaos [--faults 300] [--workers 2] [--seed 0]`."""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter
from pathlib import Path

from .faults import chaos
from .record import RESULTS, record


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        rows = chaos(arguments.faults, arguments.seed, arguments.workers, Path(folder))
    for row in rows:  # the outcome may continue, as in "silently wrong: FILES"
        row["outcome"] = row["outcome"].partition(":")[0]
    outcomes = Counter(row["outcome"] for row in rows)
    figures = {
        "faults": len(rows),
        "lost": outcomes["lost"],
        "silently_wrong": outcomes["silently wrong"],
        "identical": outcomes["identical"],
        "refused": outcomes["refused"],
        "minutes": (time.monotonic() - began) / 60,
    }
    table = Counter((row["kind"], row["outcome"]) for row in rows)
    for (kind, outcome), count in sorted(table.items()):
        print(f"{kind:10} {outcome:15} {count}")
    print(figures)
    summary = [{"kind": kind, "outcome": outcome, "count": count} for (kind, outcome), count in sorted(table.items())]
    print(record("chaos", figures, summary, arguments.results))
    if outcomes["lost"] or outcomes["silently wrong"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
