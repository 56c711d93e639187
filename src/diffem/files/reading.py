"""Reading what somebody else may have written: a file can at worst fail to load.

Only regular files are opened, a pipe or a device could keep a reader for ever. What a file claims is compared with what it holds before
memory is taken. JSON has a largest size and depth, and a checksum where we wrote it. Arrays, tensors and YAML: see the neighbours.
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

JSON_BYTES, JSON_DEPTH, JSON_VALUES = 32 << 20, 64, 1 << 21  # a million losses fit
EXPANSION, SMALL = 200, 64 << 20  # what grows more than so many times on reading, to more than so many bytes, is a trap
BLOCK = 1 << 20  # bytes hashed at a time

StrPath = str | os.PathLike[str]


@contextmanager
def opened(path: StrPath) -> Iterator[BinaryIO]:
    """The file, for reading; whatever keeps it from being read is an `InputError` that names it."""
    try:
        _require_regular(path, os.stat(path).st_mode)
        with open(path, "rb", opener=_without_waiting) as file:
            _require_regular(path, os.fstat(file.fileno()).st_mode)  # it may have been replaced in between
            _require_substance(path, file)
            yield file
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from None


def _require_regular(path: StrPath, mode: int) -> None:
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is not a file but {_kind(mode)}")


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))  # a pipe opens at once, even if nobody writes to it


def _kind(mode: int) -> str:
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def size_of(file: BinaryIO) -> int:
    return os.fstat(file.fileno()).st_size


def _require_substance(path: StrPath, file: BinaryIO) -> None:
    """Refuse a large file that is nearly all holes: it takes no room on a disk, and all it claims in memory."""
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
        pass  # no data beyond this place
    os.lseek(descriptor, 0, os.SEEK_SET)
    require_substance(size, held, str(path))


def require_substance(size: int, held: int, what: str) -> None:
    """Refuse `held` bytes that would become `size` bytes on reading, where no real data shrink so much."""
    if size > SMALL and size > EXPANSION * held:
        raise InputError(f"{what} claims {size} bytes and holds {held}: real data do not shrink so much")


def read_text(path: StrPath, most: int) -> str:
    """A text file of at most so many bytes."""
    with opened(path) as file:
        if size_of(file) > most:
            raise InputError(f"{path} is too large: {size_of(file)} bytes, at most {most} make sense here")
        data = file.read(most)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not text: {error}") from None


# JSON --------------------------------------------------------------------------------------------------------------------


def parse_json(text: str, name: str) -> Any:
    """JSON values; name: what the text is, for the error."""
    if len(text) > JSON_BYTES:
        raise InputError(f"{name} is too large: {len(text)} characters, at most {JSON_BYTES} make sense here")
    data = np.frombuffer(text.encode(errors="surrogatepass"), np.uint8)
    opening, closing = ((data == ord(a)) | (data == ord(b)) for a, b in ("[{", "]}"))
    depth = np.cumsum(opening.view(np.int8) - closing.view(np.int8), dtype=np.int32)
    if depth.max(initial=0) > JSON_DEPTH:
        raise InputError(f"{name} is not valid: brackets are nested more than {JSON_DEPTH} deep")
    # a bracket or two become an object of many bytes: a short text may take a large memory
    if np.count_nonzero(opening) > JSON_VALUES // 2 or np.count_nonzero(data == ord(",")) > 2 * JSON_VALUES:
        raise InputError(f"{name} is too large: it holds more than {JSON_VALUES} values")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{name} cannot be read: it is not valid JSON ({error})") from None


def json_checksum(value: dict[str, Any]) -> str:
    """A hash of what a mapping says, however its text is laid out."""
    return digest(json.dumps(value).encode())


def read_json(path: StrPath, most: int = JSON_BYTES) -> Any:
    """JSON values from a file of at most so many bytes; a mapping that carries a checksum must agree with it."""
    value = parse_json(read_text(path, most), str(path))
    if isinstance(value, dict) and "checksum" in value and value.pop("checksum") != json_checksum(value):
        raise InputError(
            f"{path} is damaged: its contents do not match its checksum (if you changed it on purpose, remove the checksum)"
        )
    return value


# places and hashes -------------------------------------------------------------------------------------------------------


def require_inside(path: Path, folder: Path) -> Path:
    """`path`, unless links in it lead out of `folder`: a run holds its own files and no others."""
    real, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    if not real.is_relative_to(root):
        raise InputError(f"{path} leads out of {folder}, to {real}: links that leave the folder are not followed")
    return path


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def file_digest(path: StrPath) -> str:
    """The hash of a file, read block by block."""
    value = hashlib.sha256()
    with opened(path) as file:
        while block := file.read(BLOCK):
            value.update(block)
    return value.hexdigest()
