"""Errors and signals at chosen events of a run, in one of its processes.

An event is the n-th call of a function that every phase goes through: a round of the Gaussian start, E, a training step, the
measures after a lap. There the process raises an error of its own (a full disk, no memory) or sends itself a signal, so the fault falls
into the same place however fast the machine is.
"""

from __future__ import annotations

import errno
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from diffem.core.processes import Processes
from diffem.em import lap_end, loop
from diffem.em.trainer import Trainer
from diffem.priors.fit_full import Selected

# The function called in each phase, and how often an undisturbed run of `benchmarks.faults` calls it.
PHASES: dict[str, tuple[Any, str, int]] = {
    "join": (torch.distributed, "init_process_group", 1),
    "start": (Selected, "expect", 8),
    "E": (loop, "expect", 2),  # not `draw_shard`: which process draws how many shards is a matter of luck
    "M": (Trainer, "_loss", 600),
    "watch": (lap_end, "watch", 3),
    "wait": (Processes, "_wait", 3),
}
HUNG = "DIFFEM_HUNG"  # environment variable: a file that appears when a process hangs
FIRST_ONLY = ("start", "watch")  # phases of the first process, while the others wait or draw


def no_space() -> None:
    raise OSError(errno.ENOSPC, "No space left on device (simulated)")


def no_memory() -> None:
    raise torch.OutOfMemoryError("out of memory (simulated)")


def bad_input() -> None:
    from diffem import InputError

    raise InputError("this node's data are others (simulated)")


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def hang() -> None:
    Path(os.environ[HUNG]).touch()
    threading.Event().wait()


def terminate_once_hung() -> None:
    """Not before another process hangs: one that is still at work would stop by itself."""
    while not Path(os.environ[HUNG]).exists():
        time.sleep(0.01)
    terminate()


ACTIONS: dict[str, Callable[[], None]] = {
    action.__name__: action
    for action in (no_space, no_memory, bad_input, terminate, terminate_once_hung, interrupt, hang)
}
ERRORS, SIGNALS = ("no_space", "bad_input", "no_memory"), ("terminate", "interrupt")


def event(phase: str, call: int, action: str) -> dict[str, Any]:
    """The action at the n-th call of a phase's function, as a fault of `benchmarks.faults`."""
    return {"kind": "event", "phase": phase, "call": call, "action": action}


def lay(phase: str, call: int, action: str) -> None:
    """Patch this process: at the n-th call of a phase's function the action happens first."""
    owner, name, _ = PHASES[phase]
    function, calls = getattr(owner, name), 0

    def wrapped(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            ACTIONS[action]()
        return function(*arguments, **options)

    setattr(owner, name, wrapped)


def choose(rng: random.Random, actions: tuple[str, ...], ranks: int = 1) -> tuple[int, dict[str, Any]]:
    """A random fault, and the process it happens in."""
    phase, action = rng.choice(["start", "E", "M", "watch"]), rng.choice(actions)
    if action == "no_memory" and (ranks == 1 or phase != "M"):
        action = "no_space"  # alone, and outside M, a run recovers from missing memory by smaller batches
    rank = 0 if phase in FIRST_ONLY else rng.randrange(ranks)
    call = rng.randint(1, PHASES[phase][2])
    return rank, event(phase, call, action)
