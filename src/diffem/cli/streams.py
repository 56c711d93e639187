"""Standard output and error that can be printed to in every environment."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from ..core.errors import StorageError

FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # errors of writing; a closed pipe is none


@contextmanager
def usable_streams() -> Iterator[None]:
    """Replace characters that the encoding of the output lacks, and discard the output of closed streams.

    Raises:
        StorageError: If the output, such as a file on a full disk, cannot be written.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="replace")
    try:
        yield
    except OSError as error:
        if isinstance(error, StorageError) or error.errno not in FAILURES or _can_be_written(sys.stdout):
            raise
        with open(os.devnull, "w") as nowhere:  # otherwise Python tries again at exit, and fails with code 120
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        reason = error.strerror or error
        raise StorageError(error.errno, f"the standard output cannot be written: {reason}") from None


def _can_be_written(stream: TextIO) -> bool:
    """Whether no output waits that cannot be written: if it does, another attempt fails again."""
    try:
        stream.flush()
    except OSError:
        return False
    return True
