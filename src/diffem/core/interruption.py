"""Stopping a run: SIGTERM, SIGUSR1, Ctrl-C and a time limit end it within seconds, and the same command resumes it.

`Interruption.should_stop` is true after a signal and at the end of a time limit. Work that can be repeated (the
Gaussian start, the E-step, the held-out evaluation, waiting for other processes) calls `poll()` at every step, which
raises `Preempted`. The M-step checks for itself, since it saves its state first. If the process does not stop in time,
because one evaluation or a compilation takes minutes, a watchdog thread ends it. That is safe at any instant: every
file of a run is written atomically.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

from .errors import InputError

EXIT_PREEMPTED = 75  # EX_TEMPFAIL: the same command resumes the run
EXIT_LOST = 76  # another process of the run failed or was killed; the same command resumes the run
EXIT_CTRL_C = 130  # 128 + SIGINT, the convention of shells
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Preempted(Exception):  # noqa: N818 (nothing went wrong)
    """A run was stopped by a signal, its time limit or its caller. The same command resumes it."""

    exit_code = EXIT_PREEMPTED  # the exit code of the command line
    reason = "as requested"  # completes "stopped …" in messages


class ProcessLost(Exception):  # noqa: N818 (the error is another process's)
    """Another process of the run failed or was killed. The same command resumes the run."""


_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


def poll() -> None:
    """Allow the surrounding `polled` block to stop the work here. Without such a block this does nothing."""
    check = _check.get()
    if check is not None:
        check()


@contextmanager
def polled(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` at every `poll()` inside this context; an exception that it raises ends the work."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


class Interruption:
    """Whether the run should stop: on request of the caller, after a signal, or at the end of a time limit.

    Attributes:
        requested: Whether the caller or a signal requests it; set it to stop the run.
        signal: The number of the signal, if there was one.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: int | None = None
        self._minutes: float | None = None
        self._deadline = math.inf

    @property
    def should_stop(self) -> bool:
        """Whether the run should stop now."""
        return self.requested or time.monotonic() >= self._deadline

    def stop_after(self, minutes: float) -> None:
        """Stop the run `minutes` from now."""
        if not 0 < minutes < math.inf:
            raise InputError(f"minutes must be a positive number, got {minutes}")
        self._minutes, self._deadline = minutes, time.monotonic() + 60 * minutes

    def seconds_left(self) -> float:
        """The time until the limit; infinite without one."""
        return self._deadline - time.monotonic()

    @property
    def reason(self) -> str:
        """Why the run stops, to complete "stopped …"."""
        if self.requested or self._minutes is None:
            return Preempted.reason
        return f"after {self._minutes:g} {'minute' if self._minutes == 1 else 'minutes'} as requested"

    @contextmanager
    def listening(
        self, patience: float | None = None, signals: Sequence[signal.Signals] = SIGNALS
    ) -> Iterator[Interruption]:
        """Treat SIGTERM, SIGUSR1 and the first Ctrl-C as requests to stop; a second Ctrl-C raises `KeyboardInterrupt`.

        Handlers are set in the main thread only, and restored afterwards. A Ctrl-C that was ignored before stays
        ignored: shells start background jobs of scripts that way.

        Args:
            patience: Seconds from a signal until the process is ended if this block has not been left by then. Default:
                no limit.
            signals: The signals that count as requests.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def request(number: int, frame: FrameType | None) -> None:
            if self.requested and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.requested, self.signal = True, number

        # SIGTERM and SIGUSR1 are always handled: batch scripts that ignore them pass that on to their children
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        handled = [number for number in signals if not (ignored and number == signal.SIGINT)]
        before = {number: signal.signal(number, request) for number in handled}
        try:
            if patience is None:
                yield self
            else:
                with _watchdog(patience):
                    yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@contextmanager
def _watchdog(patience: float) -> Iterator[None]:
    """End the process `patience` seconds after a signal.

    Python runs signal handlers between bytecodes of the main thread, so a long call into a library delays them. The
    number of a signal is therefore also written at once to a pipe, which a separate thread reads.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    over = threading.Event()

    def watch() -> None:
        while number := os.read(read, 1)[0]:
            if number in SIGNALS and not over.wait(patience):
                print(
                    f"diffem: stopped as requested, {patience:g} s after the signal, in the middle of a step; "
                    "the same command resumes",
                    file=sys.stderr,
                    flush=True,
                )
                os._exit(EXIT_CTRL_C if number == signal.SIGINT else EXIT_PREEMPTED)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    try:
        yield
    finally:
        over.set()
        signal.set_wakeup_fd(before)
        os.set_blocking(write, True)
        os.write(write, b"\0")
        thread.join()
        os.close(read)
        os.close(write)
