"""Check that the test suite passes every time: `python -m benchmarks.flicker [--runs 10] [--keep] [--select tests/em]`.

The whole suite runs repeatedly while other processes keep every core busy. A run that exceeds its time limit is ended
and counts as a hang, like a test that exceeds its own time limit (pytest-timeout). Each run is a row with its commit,
the names of the tests that failed or hung, the mean load of the machine during the run, and the part of the available
CPU time that the suite got. The last two show that the cores were busy, even if the other work does not come from this
benchmark (`--cores 0`), for example from a second run on the same cores (`taskset`). `--keep` adds the runs to those of
an earlier result, and `--merge` those of other results.
"""

from __future__ import annotations

import argparse
import datetime
import math
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from .record import RESULTS, ROOT, commit, earlier, record

# Work for one core. It ends with the process that started it, even if that process is killed.
BUSY = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(1_000_000))"
FINISHED = re.compile(r"^\[gw\d+\] (?:\[ *\d+%\] )?[A-Z]+ (.+?) *$", re.MULTILINE)
SAMPLING = 5.0  # seconds between two measurements of the load
STARTED = re.compile(r"^(\S+\.py::.+?) *$", re.MULTILINE)


@contextmanager
def busy(cores: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Keep the cores busy with other work."""
    workers = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(cores)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


def run_suite(select: list[str], limit: float, workers: int, options: list[str]) -> dict[str, Any]:
    """Run the suite once; returns the duration, the mean load, the number of tests, and the tests that failed or hung.

    Args:
        select: Files or folders of tests. Empty: all tests.
        limit: Seconds after which the run is ended.
        workers: Processes among which pytest-xdist distributes the tests.
        options: Further options of pytest.
    """
    with tempfile.TemporaryDirectory() as folder:
        log, report = Path(folder, "log"), Path(folder, "report.xml")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-vv",
            "-n",
            str(workers),
            "-m",
            "not slow",
            "-p",
            "no:cacheprovider",
        ]
        command += [f"--junitxml={report}", f"--basetemp={folder}/tmp", *options, *select]
        began, loads, used = time.monotonic(), [], cpu_seconds()
        with log.open("wb") as output:
            # a session of its own, so that all its worker processes can be ended together
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            try:
                code = None
                while code is None and (left := began + limit - time.monotonic()) > 0:
                    loads.append(os.getloadavg()[0])  # runnable processes, averaged over a minute
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(min(SAMPLING, left))
            finally:
                _end(process)
        seconds = time.monotonic() - began
        row: dict[str, Any] = {"seconds": round(seconds, 1)}
        row["load"] = round(sum(loads) / max(len(loads), 1), 2)
        row["cores"] = len(os.sched_getaffinity(0))
        row["cpu_share"] = round((cpu_seconds() - used) / (row["cores"] * seconds), 2)
        if code is None:
            return row | {"tests": 0, "failures": [], "hangs": running(log.read_text()) or ["the run"]}
        row |= read_report(report.read_text()) if report.is_file() else {"tests": 0, "failures": [], "hangs": []}
        if code != 0 and not row["failures"] and not row["hangs"]:
            last = log.read_text().strip().splitlines()[-1:]
            row["failures"] = [f"pytest ended with exit code {code}: {' '.join(last)}"]
        return row


def cpu_seconds() -> float:
    """CPU time of all child processes that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def running(log: str) -> list[str]:
    """The tests that had started and not finished, from pytest's output."""
    finished = set(FINISHED.findall(log))
    return [name for name in STARTED.findall(log) if name not in finished]


def read_report(text: str) -> dict[str, Any]:
    """The number of tests and the names of those that failed or hung, from pytest's JUnit report."""
    failures, hangs, cases = [], [], list(ElementTree.fromstring(text).iter("testcase"))
    for case in cases:
        for problem in [*case.findall("failure"), *case.findall("error")]:
            name = f"{case.get('classname')}::{case.get('name')}"
            hung = "Timeout (>" in (problem.get("message") or "") + (problem.text or "")[-2000:]
            (hangs if hung else failures).append(name)
    return {"tests": len(cases), "failures": failures, "hangs": hangs}


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """The figures of a result."""
    return {
        "runs": len(rows),
        "failures": sum(len(row["failures"]) for row in rows),
        "hangs": sum(len(row["hangs"]) for row in rows),
        "least_load": min(row["load"] for row in rows),
        "largest_cpu_share": max(row.get("cpu_share", math.nan) for row in rows),
        "tests": min(row["tests"] for row in rows),
        "minutes_of_longest": max(row["seconds"] for row in rows) / 60,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=40.0, help="limit of one run; it takes 6 on two idle cores")
    parser.add_argument("--cores", type=int, default=os.cpu_count() or 1, help="cores kept busy by other work")
    parser.add_argument("--workers", type=int, default=2, help="processes the tests are distributed among")
    parser.add_argument("--select", nargs="*", default=[], help="files or folders of tests; default: all")
    parser.add_argument("--keep", action="store_true", help="add to the runs of the last result")
    parser.add_argument("--merge", type=Path, nargs="*", help="only collect the runs of these folders of results")
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # SystemExit runs every `finally` block
    rows = earlier("flicker", arguments.results) if arguments.keep else []
    for folder in arguments.merge or []:
        rows += earlier("flicker", folder)
    if arguments.merge:
        print(record("flicker", summary(rows), rows, arguments.results))
        return
    with busy(arguments.cores):
        for _ in range(arguments.runs):
            origin = {"commit": commit(), "date": datetime.date.today().isoformat(), "select": arguments.select}
            row = origin | run_suite(arguments.select, 60 * arguments.minutes, arguments.workers, [])
            rows.append(row)
            print(row, flush=True)
            figures = summary(rows)
            # recorded after every run, so that an interruption loses nothing
            path = record("flicker", figures, rows, arguments.results)
    print(figures, path)
    if figures["failures"] or figures["hangs"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
