"""The small run in a separate process that stops at a chosen event, independent of the speed of the machine.

    start(OUT)                        run to the end; print a line for every event
    start(OUT, "kill", "001 M", 17)   SIGKILL at the 17th event of lap 1's M
    start(OUT, "wait", "001 M", 17)   print "waiting" there, and wait to be killed

An event is a network evaluation (in E, M and watch) or a synchronisation of a file (before and after its rename). Each
belongs to a phase, the lap and what its files show to be under way. A run's events are the same every time. Processes
are forked from a server that has imported torch already, which would take longer than the run.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from benchmarks.faults import Child
from benchmarks.undrawn import undrawn

SHARDS = 3  # of the small run


def phase(run: Path) -> str:
    """What a run is doing, as its files show: `000 start`, `001 E`, `001 M`, `001 saving`, ..."""
    laps = sorted(run.glob("laps/*"))
    if not laps or laps[-1].name == "000":
        return "000 start"
    last = laps[-1]
    if (last / "prior.safetensors").exists():
        return f"{last.name} saving"
    return f"{last.name} M" if len(list((last / "draws").glob("[0-9]*.npy"))) == SHARDS else f"{last.name} E"


class Started:
    """A process, and what it wrote."""

    numbers = itertools.count()

    def __init__(self, out: Path, arguments: tuple[object, ...], recipe: str) -> None:
        self._output, self._errors = (
            out.with_name(f"{out.name}.{next(self.numbers)}.{name}") for name in ("out", "err")
        )
        names = (str(self._output), str(self._errors))
        self.process = Child.context.Process(target=_redirected, args=(names, out, arguments, recipe))
        self.process.start()

    def communicate(self) -> tuple[int | None, str, str]:
        """Its exit code, output and errors, once it has ended."""
        self.process.join()
        return self.process.exitcode, self._output.read_text(), self._errors.read_text()

    def wait_for(self, line: str) -> None:
        while line not in (self._output.read_text().splitlines() if self._output.exists() else []):
            assert self.process.is_alive(), self.communicate()
            time.sleep(0.01)


def start(out: Path, *arguments: object, recipe: str = "RECIPE") -> Started:
    """recipe: the name of a recipe in `small.py`."""
    return Started(out, arguments, recipe)


def _redirected(names: tuple[str, str], out: Path, arguments: tuple[object, ...], recipe: str) -> None:
    for descriptor, name in zip((1, 2), names, strict=True):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    run(out, recipe, *arguments)  # type: ignore[arg-type]


def run(out: Path, recipe: str, action: str = "trace", where: str = "", number: int = 0) -> None:
    import torch

    import diffem
    from diffem.nn import MLP

    from . import small

    torch.set_num_threads(1)
    seen: Counter[str] = Counter()
    fsync, forward = os.fsync, MLP.forward

    def event() -> None:
        now = phase(out)
        seen[now] += 1
        if action == "trace":
            print(now)
        elif (now, seen[now]) == (where, number):
            if action == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            print("waiting", flush=True)
            threading.Event().wait()

    def counted_fsync(descriptor: int) -> None:
        event()
        fsync(descriptor)

    def counted_forward(*arguments: object) -> torch.Tensor:
        event()
        return forward(*arguments)  # type: ignore[arg-type]

    os.fsync, MLP.forward = counted_fsync, counted_forward  # type: ignore[assignment, method-assign]
    with undrawn():
        diffem.fit(small.observations(), getattr(small, recipe), out, progress=False)
