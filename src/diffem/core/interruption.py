"""Stopping a run from outside: SIGTERM, SIGUSR1 and Ctrl-C end it within seconds, and the same command resumes it.

A signal sets `Interruption.asked`. Work that can be abandoned and repeated (the Gaussian start, E, watch, waiting for other
processes) calls `poll()` at every step and raises `Preempted` there; M checks by itself, since it saves its state first.
If nothing reacts in time, because one evaluation or a compilation takes minutes, a watchdog thread ends the process. That is
safe at any instant: every file of a run is whole or absent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType

EXIT_PREEMPTED = 75  # EX_TEMPFAIL: run the same command again
EXIT_LOST = 76  # another process of the run failed or is gone; the same
EXIT_CTRL_C = 130  # 128 + SIGINT, as shells have it
SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)


class Preempted(Exception):  # noqa: N818 (nothing went wrong)
    """A run stopped because it was asked to; the same command resumes it."""

    exit_code = EXIT_PREEMPTED  # of the command line


class Lost(Exception):  # noqa: N818 (the error is another process's)
    """Another process of the run failed or is gone; the same command resumes."""


_check: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


def poll() -> None:
    """Let the surrounding `polled` block stop the work here. Without one this does nothing."""
    check = _check.get()
    if check is not None:
        check()


@contextmanager
def polled(check: Callable[[], None]) -> Iterator[None]:
    """Call `check` at every `poll()` of the work inside; what it raises ends the work."""
    token = _check.set(check)
    try:
        yield
    finally:
        _check.reset(token)


class Interruption:
    """Whether the run was asked to stop, and by which signal."""

    def __init__(self) -> None:
        self.asked = False
        self.signal: int | None = None

    @contextmanager
    def listening(
        self, patience: float | None = None, signals: Sequence[signal.Signals] = SIGNALS
    ) -> Iterator[Interruption]:
        """Treat SIGTERM, SIGUSR1 and the first Ctrl-C as requests to stop; a second Ctrl-C raises `KeyboardInterrupt`.

        Handlers are set in the main thread only, and restored afterwards. A Ctrl-C that was ignored before stays
        ignored: shells start background jobs of scripts that way.

        Args:
            patience: Seconds from a signal until the process is ended if this block has not been left by then.
                None waits for ever.
            signals: The signals that count as requests.
        """
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def ask(number: int, frame: FrameType | None) -> None:
            if self.asked and number == signal.SIGINT:
                raise KeyboardInterrupt
            self.asked, self.signal = True, number

        # SIGTERM and SIGUSR1 are heard in any case: batch scripts that ignore them for themselves hand that down.
        ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        heard = [number for number in signals if not (ignored and number == signal.SIGINT)]
        before = {number: signal.signal(number, ask) for number in heard}
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

    Python runs signal handlers between bytecodes of the main thread, which a long call into a library delays. The number
    of a signal is therefore also written to a pipe, at once, that a thread of its own reads.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    over = threading.Event()

    def watch() -> None:
        while number := os.read(read, 1)[0]:
            if number in SIGNALS and not over.wait(patience):
                print(
                    f"diffem: stopped as asked, {patience:g} s after the signal, in the middle of a step; "
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
