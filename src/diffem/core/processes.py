"""Several processes on one run: rank, communication, and detection of failed processes.

`accelerate launch -m diffem …`, `torchrun -m diffem …` and Slurm's launchers all set RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT; `join()` reads them. Tensors are summed by torch.distributed (NCCL on GPUs, gloo on CPUs). Small values are
exchanged through a separate key–value store. A process that ends early, by an error or a signal, announces that in the
store, and the others stop too. The store also holds a heartbeat of each process: a killed process announces nothing,
and without heartbeats the others would wait for hours.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from .errors import InputError
from .interruption import EXIT_LOST, EXIT_PREEMPTED, Preempted, ProcessLost, poll

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

T = TypeVar("T")


BEAT, PATIENCE = 2.0, 30.0  # seconds between heartbeats, and seconds without one after which a process counts as lost
JOINING = 300.0  # seconds that a process waits for the others at the beginning; a failed one may not announce it
GRACE = 10.0  # seconds that the first process waits at the end until the others no longer need the store
STOPPING = 10.0  # seconds that a process has to stop after another one announced its end
LONG = datetime.timedelta(days=7)  # in place of torch.distributed's time limit: heartbeats detect lost processes


@dataclass
class Processes:
    """This process and the others of its run. Without `join` there are no others."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    store: Store | None = None
    ended: Preempted | ProcessLost | None = None  # end announced by another process
    _calls: int = field(default=0, repr=False)
    _leaving: threading.Event = field(default_factory=threading.Event, repr=False)
    _early: bool = field(default=False, repr=False)  # whether this process ends before its work is done

    @property
    def is_first(self) -> bool:
        """Whether this process writes the shared files."""
        return self.rank == 0

    def device(self) -> torch.device:
        return torch.device("cuda", self.local_rank) if torch.cuda.is_available() else torch.device("cpu")

    def broadcast(self, value: T) -> T:
        """Return the value of the first process (any JSON value) in all processes."""
        if self.store is None:
            return value
        key = self._next_key("broadcast")
        if self.is_first:
            with self._translating_errors():
                self.store.set(key, json.dumps(value))
            return value
        return json.loads(self._wait(key))

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Run a function in the first process. All processes receive its result (as JSON) or its `InputError`."""
        if self.store is None:
            return work()
        outcome: dict[str, Any] = {}
        if self.is_first:
            try:
                outcome["value"] = work()
            except InputError as error:
                outcome["error"] = str(error)
        outcome = self.broadcast(outcome)
        if "error" in outcome:
            raise InputError(outcome["error"])
        return outcome["value"]

    def barrier(self) -> None:
        """Wait until all processes have reached this call."""
        if self.store is None:
            return
        key = self._next_key("barrier")
        with self._translating_errors():
            if self.store.add(key, 1) == self.count:
                self.store.set(f"{key}/all", "1")
        self._wait(f"{key}/all")

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in any process. All processes must call this together."""
        if self.store is None:
            return flag
        key = self._next_key("any")
        with self._translating_errors():
            if flag:
                self.store.add(f"{key}/yes", 1)
            if self.store.add(key, 1) == self.count:
                self.store.set(f"{key}/all", str(self.store.add(f"{key}/yes", 0)))
        return int(self._wait(f"{key}/all")) > 0

    def claim_indices(self, n: int) -> Iterator[int]:
        """Distribute 0 … n−1 over the processes: each claims the next number when it is free."""
        if self.store is None:
            yield from range(n)
            return
        key = self._next_key("claims")
        while True:
            with self._translating_errors():
                k = self.store.add(key, 1) - 1
            if k >= n:
                return
            yield k

    def all_reduce_(self, tensor: Tensor) -> None:
        """Sum a tensor over the processes, in place."""
        if self.count > 1:
            with self._translating_errors():
                torch.distributed.all_reduce(tensor)

    def check(self) -> None:
        """Raise `ProcessLost` or `Preempted` if another process announced that it ends early."""
        if self.ended is not None:
            raise self.ended

    @contextmanager
    def announcing(self) -> Iterator[None]:
        """Announce an early end of the work inside this context, so that other processes do not wait."""
        try:
            yield
        except BaseException as error:
            self.announce(error)
            raise

    def announce(self, error: BaseException) -> None:
        """Announce the end once; not if another process has announced its own."""
        self._early = True
        if self.store is None or isinstance(error, ProcessLost):
            return
        stopped = isinstance(error, Preempted | KeyboardInterrupt)
        lines = str(error).splitlines() or [""]
        end = {"rank": self.rank, "stopped": stopped, "kind": type(error).__name__, "message": lines[0][:400]}
        with suppress(RuntimeError):  # the process with the store may have ended
            self.store.compare_set("end", "", json.dumps(end))

    def leave(self) -> None:
        """Mark that this process ends, and wait briefly if other processes still need its store."""
        self._leaving.set()
        if self.store is None:
            return
        with suppress(RuntimeError):  # the process with the store may have ended
            # Others may be waiting for this process in an all-reduce: closing gloo's connections ends that wait.
            # Closing NCCL's could itself wait for the others.
            if torch.distributed.is_initialized() and not (self._early and torch.cuda.is_available()):
                torch.distributed.destroy_process_group()
        with suppress(RuntimeError):
            self.store.set(f"left/{self.rank}", "1")
            if self.is_first:  # the store may live in this process, so it is kept until no process needs it
                deadline = time.monotonic() + GRACE
                others = [f"left/{r}" for r in range(1, self.count)]
                while time.monotonic() < deadline and not self.store.check(others):
                    time.sleep(0.05)

    def _next_key(self, kind: str) -> str:
        # every process makes the same calls in the same order: their number is a key
        self._calls += 1
        return f"{kind}/{self._calls}"

    def _wait(self, key: str) -> str:
        assert self.store is not None
        pause = 0.001
        with self._translating_errors():
            while not self.store.check([key]):
                self._read_end(self.store)
                if self.ended is not None and not self.store.check([key]):  # it may have been set before that end
                    raise self.ended
                poll()
                time.sleep(pause)
                pause = min(2 * pause, 0.1)
            return self.store.get(key).decode()

    def _read_end(self, store: Store) -> None:
        """Read the announcement of another process's end, if one exists."""
        if self.ended is not None or not store.check(["end"]):
            return
        end = json.loads(store.get("end"))
        if end["rank"] == self.rank:
            return
        who, error = f"process {end['rank']} of {self.count}", f"{end['kind']}: {end['message']}"
        if end["stopped"]:
            self.ended = Preempted(end["message"] or f"{who} was interrupted")
        else:
            self.ended = ProcessLost(f"{who} failed ({error})")

    @contextmanager
    def _translating_errors(self) -> Iterator[None]:
        """Raise `ProcessLost` for a broken connection, which torch.distributed reports as a RuntimeError."""
        try:
            yield
        except RuntimeError as error:
            with suppress(RuntimeError):
                assert self.store is not None
                self._read_end(self.store)
            cause = str(error).splitlines()[0][:100]
            raise self.ended or ProcessLost(f"the connection to another process is broken ({cause})") from None


ALONE = Processes()


def join() -> Processes:
    """Join the processes that were started together. Returns `ALONE` if there is only one."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    if count == 1:
        return ALONE
    try:
        rank, host, port = int(os.environ["RANK"]), os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    except (KeyError, ValueError) as error:
        raise InputError(
            f"WORLD_SIZE is {count}, so RANK, MASTER_ADDR and MASTER_PORT must be set too, but one is missing or "
            f"invalid ({error}); start several processes with `accelerate launch` or `torchrun`"
        ) from None
    local = int(os.environ.get("LOCAL_RANK", "0"))
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # the launcher keeps the store
    connect = _connector(host, port, count)
    try:
        store = connect(rank == 0 and not hosted)
        processes = Processes(rank, count, local, _prefixed(store))
        # before any other call that waits for the other processes
        threading.Thread(target=_listen, args=(processes, _prefixed(connect(False))), daemon=True).start()
    except RuntimeError as error:
        cause = str(error).splitlines()[0][:200]
        raise ProcessLost(f"not all {count} processes of the run connected to {host}:{port} ({cause})") from None
    try:
        with processes.announcing():
            if torch.cuda.is_available():
                torch.cuda.set_device(processes.device())
            with processes._translating_errors():
                torch.distributed.init_process_group(
                    "nccl" if torch.cuda.is_available() else "gloo",
                    store=_prefixed(store, "group"),
                    rank=rank,
                    world_size=count,
                    timeout=LONG,
                )
    except BaseException:
        processes.leave()
        raise
    return processes


def _prefixed(store: Store, name: str = "run") -> Store:
    """Prefix all keys with the attempt: launchers that restart a failed job keep their store."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    return PrefixStore(f"diffem/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{name}", store)


def _connector(host: str, port: int, count: int) -> Callable[[bool], Store]:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    def connect(master: bool) -> Store:
        return TCPStore(host, port, count, master, timeout=datetime.timedelta(seconds=JOINING))

    return connect


def _listen(processes: Processes, store: Store) -> None:
    """Send heartbeats, check those of the other processes, and watch for announcements of their end."""
    last_beat = {r: (-1, time.monotonic()) for r in range(processes.count) if r != processes.rank}
    while not processes._leaving.wait(BEAT):
        try:
            store.add(f"alive/{processes.rank}", 1)
            processes._read_end(store)
            if processes.ended is not None and not processes._leaving.wait(STOPPING):
                _give_up(processes, str(processes.ended))
            for r, (beats, when) in list(last_beat.items()):
                if store.check([f"left/{r}"]):
                    del last_beat[r]
                    continue
                now = store.add(f"alive/{r}", 0)
                last_beat[r] = (now, time.monotonic()) if now != beats else (beats, when)
                if time.monotonic() - last_beat[r][1] > PATIENCE:
                    _give_up(processes, f"process {r} of {processes.count} has sent no heartbeat for {PATIENCE:.0f} s")
        except RuntimeError:  # torch.distributed's own errors are RuntimeErrors
            if not processes._leaving.wait(BEAT):
                _give_up(processes, "the connection to the store that the processes share is broken")


def _give_up(processes: Processes, cause: str) -> None:
    print(
        f"diffem: {cause}; process {processes.rank} stops too. No work is lost: the same command resumes.",
        file=sys.stderr,
        flush=True,
    )
    # other threads may wait indefinitely for the lost process
    os._exit(EXIT_PREEMPTED if isinstance(processes.ended, Preempted) else EXIT_LOST)
