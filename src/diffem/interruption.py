"""Being asked to stop: SIGTERM and SIGUSR1 end a run after its current shard or block of steps, with everything saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

EXIT_PREEMPTED = 75  # EX_TEMPFAIL: run the same command again
EXIT_LOST = 76  # another process of the run is gone; the same


class Preempted(Exception):  # noqa: N818 (nothing went wrong)
    """A run stopped because it was asked to; the same command resumes it."""


class Lost(Exception):  # noqa: N818 (the error is another process's)
    """Another process of the run is gone; the same command resumes."""


class Interruption:
    """Whether somebody has asked."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[Interruption]:
        """Take SIGTERM and SIGUSR1 as the question, in the main thread; handlers are put back afterwards."""
        if threading.current_thread() is not threading.main_thread():
            yield self
            return

        def ask(number: int, frame: FrameType | None) -> None:
            self.asked = True

        before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGUSR1)}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
