"""Inject faults at random times into a run (`benchmarks.chaos` resumes it and classifies the outcome).

A small run is disturbed repeatedly. The faults are: the process is killed or gets a stop signal; one of two processes
is killed or fails with an error (`benchmarks.rank_faults`); the disk is full; the E-step or the M-step runs out of
memory; a file is truncated or one of its bits is flipped; a file is replaced by that of another lap, seed or run;
samples or draws for the report are removed; the data file is moved or changed (`benchmarks.file_faults`). After each
fault the same command is repeated until the run ends. Every weight, draw, sample and loss must then be bit-identical to
the undisturbed run, or the command must fail with a message that names the problem. Any other outcome counts as lost
(the run cannot be resumed) or silently wrong.
"""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import diffem
from diffem import Observations, operators
from diffem.core import processes
from diffem.core.interruption import EXIT_LOST, EXIT_PREEMPTED, Interruption, Preempted, ProcessLost
from diffem.em import e_step, trainer
from diffem.files import writing as files

from . import file_faults, rank_faults
from .undrawn import undrawn

RECIPE = {
    "name": "chaos",
    "data": {"source": "given"},
    "laps": 2,
    "sigma_min": 0.02,
    "sigma_max": 20.0,
    "gaussian": {"rounds": 8},
    "network": {"kind": "mlp", "hidden": [24, 24], "embedding": 16},
    "e_step": {"steps": 6, "iterations": 2, "shard": 20},
    "train": {"steps": 300, "batch": 16, "lr": 2e-3, "ema": 0.98, "checkpoint_seconds": 0.05},
    "watch": {"held_out": 16, "draws": 4, "samples": 32},
}


def observations(seed: int = 0) -> Observations:
    generator = torch.Generator().manual_seed(seed)
    angle = 6.3 * torch.rand(136, generator=generator)
    x = torch.stack([angle.cos(), angle.sin(), (2 * angle).cos(), angle.sin() ** 2], 1)
    mask = torch.rand(136, 4, generator=generator) < 0.7
    mask[:, 0] = True
    return Observations(x + 0.1 * torch.randn(136, 4, generator=generator), operators.Mask(mask), sigma=0.1)


def run(out: str, fault: dict[str, Any], environment: dict[str, str], errors: str) -> None:
    """Make a run of a few seconds in this process and exit with its status."""
    os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
    os.environ.update(environment, **{rank_faults.HUNG: f"{out}.hung"})
    torch.set_num_threads(1)
    # a signal may be inherited as ignored, but stop signals are among the faults
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # SIGTERM may come before the run listens for it, or after the run has ended
    signal.signal(signal.SIGTERM, lambda number, frame: os._exit(EXIT_PREEMPTED))
    install(fault)
    processes.BEAT, processes.PATIENCE, processes.GRACE, processes.STOPPING = 0.25, 15.0, 2.0, 2.0
    processes.JOINING = 120.0  # if the other process is killed before it joins
    Path(f"{out}.begun").touch()
    # otherwise most faults would occur while the report is drawn
    with undrawn(), Interruption().listening() as interruption:
        us = processes.ALONE
        try:
            us = processes.join()
            work: dict[str, Any] = {"progress": False, "processes": us, "interruption": interruption}
            if "data" in fault:
                diffem.fit(None, {**RECIPE, "data": {"source": "file", "path": fault["data"]}}, out, **work)
            else:
                diffem.fit(observations(fault.get("observations", 0)), RECIPE, out, fault.get("seed"), **work)
        except Preempted:
            sys.exit(EXIT_PREEMPTED)
        except ProcessLost as error:
            print(f"diffem: {error}", file=sys.stderr)
            sys.exit(EXIT_LOST)
        except (diffem.InputError, OSError) as error:
            print(f"diffem: {error}", file=sys.stderr)
            sys.exit(2)
        finally:
            us.leave()


def install(fault: dict[str, Any]) -> None:
    """Patch the library so that the n-th call of a function fails."""
    calls = 0

    def at_call(function: Callable[..., Any], fail: Callable[..., None]) -> Callable[..., Any]:
        def wrapped(*args: Any, **options: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == fault["call"]:
                fail(*args)
            return function(*args, **options)

        return wrapped

    def no_memory(*args: Any) -> None:
        raise torch.OutOfMemoryError("simulated")

    def no_space(file: Path, data: bytes) -> None:
        # the disk was full after half of the temporary file was written
        file.parent.mkdir(parents=True, exist_ok=True)
        file.with_name(f".{file.name}.0.partial").write_bytes(data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device", str(file))

    if fault["kind"] == "donor":
        file_faults.keep_checkpoints()
    if fault["kind"] == "event":
        rank_faults.install(fault["phase"], fault["call"], fault["action"])
    if fault["kind"] == "memory-e":
        e_step.draw_shard = at_call(e_step.draw_shard, no_memory)
    if fault["kind"] == "memory-m":
        trainer.Trainer._loss = at_call(trainer.Trainer._loss, no_memory)  # type: ignore[method-assign]
    if fault["kind"] == "disk-full":
        failing, write = at_call(files.write_bytes, no_space), files.write_bytes
        for module in [m for m in list(sys.modules.values()) if getattr(m, "write_bytes", None) is write]:
            module.write_bytes = failing  # type: ignore[attr-defined]


class ReservedPort:
    """A port of this machine that stays reserved while this object lives, and on which our server can listen.

    A bound socket reserves it. Linux allows another socket that also sets SO_REUSEADDR, as torch's store does, to
    listen there.
    """

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.number: int = self._socket.getsockname()[1]

    def __del__(self) -> None:
        self._socket.close()


class Child:
    """A process forked from one that has imported everything, since starting Python takes longer than the run."""

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.faults"])

    def __init__(
        self,
        out: Path,
        fault: dict[str, Any],
        environment: dict[str, str] | None = None,
        port: ReservedPort | None = None,
    ) -> None:
        self.port = port  # the port stays reserved while this object lives
        rank = (environment or {}).get("RANK", "0")
        self.errors = Path(f"{out}.{rank}.errors")
        self.process = self.context.Process(target=run, args=(str(out), fault, environment or {}, str(self.errors)))
        self.process.start()

    def wait(self, timeout: float) -> bool:
        """Whether the process ended within the given number of seconds."""
        self.process.join(timeout)
        return self.process.exitcode is not None

    def end(self) -> tuple[int, str]:
        """The exit code and the output of the process."""
        if not self.wait(300):
            self.process.kill()
            self.process.join()
            return -1, "it did not end within 300 s"
        code = self.process.exitcode
        assert code is not None
        return code, self.errors.read_text() if self.errors.exists() else ""


KINDS = (
    "kill", "stop", "kill-rank", "disk-full", "memory-e", "memory-m", "truncate", "flip", "stop-event", "stop-rank",
    "rank-error", "swap-lap", "swap-seed", "swap-run", "shown", "data",
)  # fmt: skip
PAIRS = ("kill-rank", "stop-rank", "rank-error")  # faults in one of two processes
NONE: dict[str, Any] = {"kind": "none"}


def inject(kind: str, out: Path, seconds: float, rng: random.Random, donors: dict[str, Path]) -> str:
    """Inject one fault; returns the message of the run about it, or the name of the damaged file."""
    if kind in ("memory-e", "memory-m", "disk-full"):
        most = {"memory-e": 12, "memory-m": 540, "disk-full": 60}[kind]
        code, errors = Child(out, {"kind": kind, "call": rng.randint(1, most)}).end()
        return errors if code in (0, 2) else f"UNCLEAR exit {code}: {errors[-500:]}"
    if kind == "kill-rank":
        return _kill_rank(out, seconds, rng)
    if kind in ("stop-rank", "rank-error"):
        return _one_of_two(kind, out, rng)
    if kind == "stop-event":
        _, fault = rank_faults.choose(rng, rank_faults.SIGNALS)
        code, errors = Child(out, fault).end()
        return errors if code in (0, EXIT_PREEMPTED) else f"UNCLEAR exit {code}: {errors[-500:]}"
    child = Child(out, file_faults.on_a_file(out) if kind == "data" else NONE)
    wait_until_begun(out, child)
    if not child.wait(rng.uniform(0.0, 1.05) * seconds):
        assert child.process.pid is not None
        os.kill(child.process.pid, signal.SIGTERM if kind == "stop" else signal.SIGKILL)
    code, errors = child.end()
    if kind == "stop" and code not in (0, EXIT_PREEMPTED):
        return f"UNCLEAR exit {code}: {errors[-500:]}"
    if kind in donors:
        return file_faults.swap(out, donors[kind], kind == "swap-lap", rng)
    if kind == "shown":
        return file_faults.damage_shown(out, rng)
    return file_faults.damage(kind, out, rng) if kind in ("truncate", "flip") else errors


def wait_until_begun(out: Path, child: Child) -> None:
    """Wait until the run has started, so that the fault occurs during the run."""
    flag = Path(f"{out}.begun")
    while not flag.exists() and not child.wait(0.005):
        pass
    flag.unlink(missing_ok=True)


def ranks(out: Path, faults: dict[int, dict[str, Any]] | None = None, count: int = 2) -> list[Child]:
    """Start several processes of one run; faults: the faults of some of them, by rank."""
    port = ReservedPort()
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port.number)}
    return [Child(out, (faults or {}).get(r, NONE), {**shared, "RANK": str(r)}, port) for r in range(count)]


def undisturbed(kind: str, out: Path, options: dict[str, Any] = NONE) -> tuple[int, str]:
    """Run or resume without a fault, with as many processes as the fault needs: sums over two round differently."""
    children = ranks(out) if kind in PAIRS else [Child(out, options)]
    ends = [child.end() for child in children]
    Path(f"{out}.begun").unlink(missing_ok=True)
    return max(ends)


def _kill_rank(out: Path, seconds: float, rng: random.Random) -> str:
    pair = ranks(out)
    wait_until_begun(out, pair[0])
    time.sleep(rng.uniform(0.0, 1.5) * seconds)
    victim = rng.randrange(2)
    pair[victim].process.kill()
    killed = time.monotonic()
    code, errors = pair[1 - victim].end()
    pair[victim].end()
    waited = time.monotonic() - killed
    if code in (0, EXIT_LOST):
        return errors
    return f"UNCLEAR exit {code} after {waited:.0f} s: {errors[-500:]}"


def _one_of_two(kind: str, out: Path, rng: random.Random) -> str:
    """Send a signal to one of two processes, so that both stop; or raise an error in one, which the other must name."""
    actions = rank_faults.SIGNALS if kind == "stop-rank" else rank_faults.ERRORS
    faulty, fault = rank_faults.choose(rng, actions, ranks=2)
    ends = [child.end() for child in ranks(out, {faulty: fault})]
    codes, (code, errors) = [code for code, _ in ends], ends[1 - faulty]
    if codes == [0, 0]:  # a resumed or finished run has fewer events
        return ""
    if kind == "stop-rank" and codes == [EXIT_PREEMPTED, EXIT_PREEMPTED]:
        return errors
    if (
        kind == "rank-error"
        and code == EXIT_LOST
        and f"process {faulty} of 2 failed" in errors
        and "(simulated)" in errors
    ):
        return errors
    return f"UNCLEAR exits {codes} after {fault} in {faulty}: {ends[0][1][-300:]} / {ends[1][1][-300:]}"
