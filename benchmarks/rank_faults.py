"""Errors and signals at chosen events of a run, in one of its processes.

An event is the n-th call of a function that every phase calls: a round of the Gaussian start, the E-step, a training
step, the measures after a lap. At this call the process raises an error (a full disk, out of memory) or sends itself a
signal. The fault therefore occurs at the same point of the run on machines of any speed.
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
from diffem.priors.fit_full import SelectionModel

# The function called in each phase, and how often an undisturbed run of `benchmarks.faults` calls it.
PHASES: dict[str, tuple[Any, str, int]] = {
    "join": (torch.distributed, "init_process_group", 1),
    "start": (SelectionModel, "expect", 8),
    "E": (loop, "expect", 2),  # not `draw_shard`: the number of shards that each process draws is random
    "M": (Trainer, "_loss", 600),
    "watch": (lap_end, "evaluate_lap", 3),
    "wait": (Processes, "_wait", 3),
}
HUNG = "DIFFEM_HUNG"  # environment variable with the path of a file that is created when a process hangs
FIRST_ONLY = ("start", "watch")  # phases of the first process, during which the others wait or draw


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
    """Terminate once another process hangs; a process that is still working would stop by itself."""
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


def install(phase: str, call: int, action: str) -> None:
    """Patch this process: the action happens before the n-th call of a phase's function."""
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
    """Choose a random fault and the process in which it happens."""
    phase, action = rng.choice(["start", "E", "M", "watch"]), rng.choice(actions)
    if action == "no_memory" and (ranks == 1 or phase != "M"):
        action = "no_space"  # a single process outside the M-step recovers from missing memory with smaller batches
    rank = 0 if phase in FIRST_ONLY else rng.randrange(ranks)
    call = rng.randint(1, PHASES[phase][2])
    return rank, event(phase, call, action)
