"""The temporary folder of uploaded files: removed when the app stops, however it stops.

The folder is locked while its process lives, and the operating system frees the lock with the process. So the next
start can tell the folders of processes that were killed (SIGKILL, loss of power) from those in use, and removes them.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "diffem-app-"


@contextmanager
def upload_folder() -> Iterator[Path]:
    """A locked folder of this process; leftovers of processes that are gone are removed first."""
    remove_leftovers()
    path, lock = _create()
    try:
        yield path
    finally:
        _remove(path)
        if lock is not None:
            os.close(lock)


def remove_leftovers() -> None:
    """Remove this user's upload folders that no process holds locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _lock(path)
        if lock is not None:
            _remove(path)
            os.close(lock)


def sweep(folder: Path, age: float) -> None:
    """Remove files that nobody has read for `age` seconds: uploads that were abandoned or interrupted."""
    for root, _, names in os.walk(folder, topdown=False):
        for name in names:
            file = Path(root, name)
            try:
                if time.time() - file.stat().st_mtime > age:
                    file.unlink()
            except FileNotFoundError:  # read and removed in the meantime
                continue
        if Path(root) != folder:
            remove_empty(Path(root))


def remove_empty(folder: Path) -> None:
    """Remove a folder unless something is in it."""
    with suppress(OSError):
        folder.rmdir()


def _create() -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        lock = _lock(path)
        if lock is None:
            time.sleep(0.2)  # another process that starts now may have taken it for a leftover, and is removing it
        if path.is_dir():
            return path, lock  # without a lock on file systems that have none
        if lock is not None:
            os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock a folder of this user; None where somebody else has locked it, or where it is not ours."""
    import fcntl

    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return descriptor
    except OSError:  # locked, or on a file system without locks
        pass
    os.close(descriptor)
    return None


def _remove(path: Path) -> None:
    """Remove a folder, also while a request that is being cancelled still writes into it."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.05)
