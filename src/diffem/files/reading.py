"""Read untrusted files: they can fail to load, but they cannot execute code, exhaust memory or block the reader.

Only regular files are opened, because a pipe or a device could block the reader forever. The size that a file claims is
compared with its actual size before memory is allocated. JSON is limited in size and depth, and is verified if it
contains a checksum. Arrays, tensors and YAML have their own modules: `arrays.py`, `tensors.py`, `plain_yaml.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..core.errors import InputError

JSON_BYTES, JSON_DEPTH, JSON_VALUES = 32 << 20, 64, 1 << 21  # enough for a million losses
EXPANSION = 200  # largest ratio of the size in memory to the size on disk; a larger ratio indicates an attack
SMALL = 64 << 20  # the ratio is not checked for data of at most this many bytes
BLOCK = 1 << 20  # bytes read and hashed at a time

StrPath = str | os.PathLike[str]


@contextmanager
def open_checked(path: StrPath) -> Iterator[BinaryIO]:
    """Open a file for reading.

    Raises:
        InputError: If the file cannot be read, is not a regular file, or consists almost entirely of holes. Operating
            system errors inside the `with` statement are converted to `InputError` too.
    """
    try:
        _require_regular(path, os.stat(path).st_mode)
        with open(path, "rb", opener=_without_waiting) as file:
            _require_regular(path, os.fstat(file.fileno()).st_mode)  # the path may have been replaced since os.stat
            _require_substance(path, file)
            yield file
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _require_regular(path: StrPath, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is not a file but {_kind(mode)}")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe without a writer must not block the open


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def size_of(file: BinaryIO) -> int:
    """Size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def _require_substance(path: StrPath, file: BinaryIO) -> None:
    """Reject a large sparse file that is almost entirely holes: small on disk, but of full size in memory."""
    size, held, place = size_of(file), 0, 0
    if size <= SMALL or not hasattr(os, "SEEK_DATA"):
        return
    descriptor = file.fileno()
    try:
        while place < size and held * EXPANSION < size:
            start = os.lseek(descriptor, place, os.SEEK_DATA)
            place = os.lseek(descriptor, start, os.SEEK_HOLE)
            held += place - start
    except OSError:
        pass  # lseek fails if no data follow
    os.lseek(descriptor, 0, os.SEEK_SET)
    require_substance(size, held, str(path))


def require_substance(size: int, held: int, what: str) -> None:
    """Reject `held` bytes on disk that would become `size` bytes in memory, if real data do not compress this well.

    Raises:
        InputError: If `size` exceeds `SMALL` and is more than `EXPANSION` times `held`.
    """
    if size > SMALL and size > EXPANSION * held:
        raise InputError(
            f"{what} would expand from {held} to {size} bytes, more than a factor of {EXPANSION}: "
            "real data do not compress this well"
        )


def read_text(path: StrPath, most: int) -> str:
    """Read a text file in UTF-8 of at most `most` bytes.

    Raises:
        InputError: If the file is larger or is not text.
    """
    with open_checked(path) as file:
        if size_of(file) > most:
            raise InputError(f"{path} is too large: {size_of(file)} bytes, the limit is {most}")
        data = file.read(most)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: {error}") from None


# JSON -----------------------------------------------------------------------------------------------------------------


def parse_json(text: str, name: str) -> Any:
    """Parse JSON of limited size, depth and number of values; name: name of the text in error messages.

    Raises:
        InputError: If the text is not valid JSON or exceeds a limit.
    """
    if len(text) > JSON_BYTES:
        raise InputError(f"{name} is too large: {len(text)} characters, the limit is {JSON_BYTES}")
    data = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    opening, closing = ((data == ord(a)) | (data == ord(b)) for a, b in ("[{", "]}"))
    depth = np.cumsum(opening.view(np.int8) - closing.view(np.int8), dtype=np.int32)
    if depth.max(initial=0) > JSON_DEPTH:
        raise InputError(f"{name} is not valid: brackets are nested more than {JSON_DEPTH} deep")
    # two brackets become a Python object of many bytes, so a short text can take much memory
    if np.count_nonzero(opening) > JSON_VALUES // 2 or np.count_nonzero(data == ord(",")) > 2 * JSON_VALUES:
        raise InputError(f"{name} is too large: it holds more than {JSON_VALUES} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} cannot be read: it is not valid JSON ({error})") from None


def json_checksum(value: dict[str, Any]) -> str:
    """Hash of the content of a mapping, independent of the layout of its text."""
    return digest(json.dumps(value).encode())


def read_json(path: StrPath, most: int = JSON_BYTES) -> Any:
    """Read JSON from a file of at most `most` bytes. If it is a mapping with a checksum, the checksum is verified.

    Raises:
        InputError: If the file is too large, is not valid JSON, or does not match its checksum.
    """
    value = parse_json(read_text(path, most), str(path))
    if isinstance(value, dict) and "checksum" in value and value.pop("checksum") != json_checksum(value):
        raise InputError(
            f"{path} is damaged: its contents do not match its checksum (if you changed it on purpose, "
            "remove the checksum)"
        )
    return value


# paths and hashes -----------------------------------------------------------------------------------------------------


def require_inside(path: Path, folder: Path) -> Path:
    """Return `path` if it lies in `folder` after links are resolved: a run contains only its own files.

    Raises:
        InputError: If a link leads out of the folder.
    """
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not real.is_relative_to(root):
        raise InputError(f"{path} leads out of {folder}, to {real}: links that leave the folder are not followed")
    return path


def digest(data: bytes | memoryview) -> str:
    """SHA-256 of bytes, in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def file_digest(path: StrPath) -> str:
    """SHA-256 of a file, in hexadecimal; the file is read block by block."""
    value = hashlib.sha256()
    with open_checked(path) as file:
        while block := file.read(BLOCK):
            value.update(block)
    return value.hexdigest()
