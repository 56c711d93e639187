"""`diffem app RUN` as people start it: a process of its own, with the web framework's threads in it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HUNG = 240.0  # seconds, many times what a start or a stop takes: only ends what hangs


@contextmanager
def served(run: Path, *options: str, temporary: Path | None = None) -> Iterator[tuple[str, int]]:
    """The page's address and the process id; temporary: where it keeps uploads, the system's place when absent."""
    command = [sys.executable, "-m", "diffem", "app", str(run), "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"TMPDIR": str(temporary)} if temporary else {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        watchdog = threading.Timer(HUNG, process.kill)  # its output ends with it, and so does the loop below
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
