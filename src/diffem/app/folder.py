"""The temporary folder of uploaded files, which is removed when the app stops.

The folder is locked while its process lives, and the operating system frees the lock with the process. The next start
of the app removes every folder without a lock: those are left over from processes that were killed (SIGKILL, power
failure).
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
    """Create a locked folder for this process, after removing the folders of processes that no longer exist."""
    remove_leftovers()
    path, lock = _create()
    try:
        yield path
    finally:
        _remove(path)
        if lock is not None:
            os.close(lock)


def remove_leftovers() -> None:
    """Remove the upload folders of this user that no process has locked."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        lock = _lock(path)
        if lock is not None:
            _remove(path)
            os.close(lock)


def sweep(folder: Path, age: float) -> None:
    """Remove files that have not been read for `age` seconds: abandoned or interrupted uploads."""
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
    """Remove a folder if it is empty."""
    with suppress(OSError):
        folder.rmdir()


def _create() -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
        lock = _lock(path)
        if lock is None:
            time.sleep(0.2)  # a process that starts at the same moment may have locked the folder to remove it
        if path.is_dir():
            return path, lock  # the lock is None on file systems without locks
        if lock is not None:
            os.close(lock)


def _lock(path: Path) -> int | None:
    """Lock a folder; None if another process has locked it or if it belongs to another user."""
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
    """Remove a folder; retry while a request that is being cancelled still writes into it."""
    for _ in range(20):
        shutil.rmtree(path, ignore_errors=True)
        if not path.exists():
            return
        time.sleep(0.05)
