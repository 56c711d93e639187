"""`diffem app RUN` in a separate process, as a user starts it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HUNG = 240.0  # seconds, many times the duration of a start or a stop; it only ends processes that hang


@contextmanager
def served(run: Path, *options: str, temporary: Path | None = None) -> Iterator[tuple[str, int]]:
    """Yield the address of the page and the process id; temporary: folder for uploads. Default: the system's."""
    command = [sys.executable, "-m", "diffem", "app", str(run), "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"TMPDIR": str(temporary)} if temporary else {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(HUNG, process.kill)  # the output ends with the process, and so does the loop below
        watchdog.start()
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"http://[\w.:\[\]]+", line):
                    break
            else:
                raise AssertionError(f"no address within {HUNG:g} s: {''.join(said)}")
            watchdog.cancel()
            yield found[0], process.pid
        finally:
            watchdog.cancel()
            process.terminate()
            try:
                process.wait(HUNG)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
