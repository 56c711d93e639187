"""`diffem app RUN` as people start it: a process of its own, with the web framework's threads in it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def served(run: Path, *options: str, temporary: Path | None = None) -> Iterator[tuple[str, int]]:
    """The page's address and the process id; temporary: where it keeps uploads, the system's place when absent."""
    command = [sys.executable, "-m", "diffem", "app", str(run), "--port", "0", *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({"TMPDIR": str(temporary)} if temporary else {})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        try:
            said = []
            for line in process.stdout:
                said.append(line)
                if found := re.search(r"http://[\w.:\[\]]+", line):
                    break
            else:
                raise AssertionError("".join(said))
            yield found[0], process.pid
        finally:  # also when nothing was said until the test's time was over
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
