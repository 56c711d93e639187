"""The small run as a process of its own that stops at a chosen event, wherever the machine's speed puts that instant.

    python -m tests.em.events OUT                      run to the end; print a line for every event
    python -m tests.em.events OUT kill "001 M" 17      SIGKILL at the 17th event of lap 1's M
    python -m tests.em.events OUT wait "001 M" 17      print "waiting" there, and wait to be killed

An event is a network evaluation (in E, M and watch) or a synchronisation of a file (before and after its rename). Each belongs
to a phase, the lap and what its files show to be under way. A run's events are the same every time.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

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


def start(out: Path, *arguments: str, recipe: str = "RECIPE") -> subprocess.Popen[str]:
    """recipe: the name of a recipe in `small.py`."""
    command = [sys.executable, "-m", "tests.em.events", str(out), *arguments]
    return subprocess.Popen(
        command,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "SMALL_RECIPE": recipe},
    )


def main(out: Path, action: str = "trace", where: str = "", number: str = "0") -> None:
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
        elif (now, seen[now]) == (where, int(number)):
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
    diffem.fit(small.observations(), getattr(small, os.environ["SMALL_RECIPE"]), out, progress=False)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
