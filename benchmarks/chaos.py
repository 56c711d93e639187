"""Outcomes of faults at random times: `python -m benchmarks.chaos [--faults 300] [--workers 2] [--seed 0]`."""

from __future__ import annotations

import argparse
import random
import shutil
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from . import file_faults
from .faults import KINDS, NONE, PAIRS, Child, inject, undisturbed, wait_until_begun
from .outcomes import compare, contents, differs
from .record import RESULTS, record

TRIES = 8  # attempts to resume a run


def go_through(
    number: int,
    seed: int,
    folder: Path,
    references: dict[str, dict[str, np.ndarray]],
    donors: dict[str, Path],
    seconds: float,
) -> dict[str, Any]:
    """Make one run with one fault and resume it until it ends or is rejected."""
    rng = random.Random(f"{seed} {number}")
    kind = KINDS[number % len(KINDS)]
    out, reference = folder / f"run{number}", references["pair" if kind in PAIRS else "one"]
    began = time.monotonic()
    said = inject(kind, out, seconds, rng, donors)
    row: dict[str, Any] = {"fault": number, "kind": kind, "said": said.strip()[-200:].replace(str(folder), "…")}
    if said.startswith("UNCLEAR"):
        return {**row, "outcome": "lost", "said": said}
    damaged = said.removeprefix("damaged ") if said.startswith("damaged ") else ""
    if damaged and (wrong := differs(contents(out)[0], reference)):  # the run is read before it resumes
        return {**row, "outcome": f"silently wrong: {wrong[:4]}"}
    options, changed = file_faults.move_data(out, rng) if kind == "data" else (NONE, None)
    if changed is not None:
        code, errors = undisturbed(kind, out, changed)
        if code != 2 or "other observations" not in errors:
            return {**row, "outcome": f"silently wrong: exit {code} on changed data, {errors[-300:]}"}
    for _ in range(TRIES):
        code, errors = undisturbed(kind, out, options)
        if code == 0:
            row["outcome"] = compare(out, reference, damaged)
            break
        if code == 2 and damaged and Path(damaged).name in errors:
            row["outcome"] = "refused"
            row["message"] = errors.strip()[-200:].replace(str(folder), "…")
            break
    else:
        row["outcome"], row["said"] = "lost", errors[-800:]
    row["seconds"] = time.monotonic() - began
    for path in folder.glob(f"run{number}.*.safetensors"):
        path.unlink()
    shutil.rmtree(out, ignore_errors=True)
    return row


def chaos(faults: int, seed: int, workers: int, folder: Path) -> list[dict[str, Any]]:
    began = time.monotonic()
    child = Child(folder / "undisturbed", NONE)
    wait_until_begun(folder / "undisturbed", child)
    begun = time.monotonic()
    code, errors = child.end()
    assert code == 0, errors
    seconds = time.monotonic() - begun
    references = {"one": contents(folder / "undisturbed")[0]}
    kinds = {KINDS[number % len(KINDS)] for number in range(faults)}
    if not kinds.isdisjoint(PAIRS):
        assert undisturbed("kill-rank", folder / "pair")[0] == 0
        references["pair"] = contents(folder / "pair")[0]
    donors = {kind: folder / kind for kind in file_faults.DONORS if kind in kinds}
    for kind, path in donors.items():
        assert undisturbed(kind, path, {"kind": "donor", **file_faults.DONORS[kind]})[0] == 0
    print(f"undisturbed: {seconds:.1f} s and {begun - began:.1f} s to start", flush=True)
    rows = []
    with ThreadPoolExecutor(workers) as pool:
        for row in pool.map(lambda k: go_through(k, seed, folder, references, donors, seconds), range(faults)):
            rows.append(row)
            if row["outcome"] not in ("identical", "refused"):
                print(row, flush=True)
            if len(rows) % 20 == 0:
                print(
                    f"{len(rows)} faults, {time.monotonic() - began:.0f} s: "
                    f"{dict(Counter(r['outcome'] for r in rows))}",
                    flush=True,
                )
    return rows


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
