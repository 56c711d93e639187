"""Write files atomically: each is written under a temporary name, synced and renamed, so it is complete or absent.

`reading.py`, `arrays.py` and `tensors.py` read these files.
"""

from __future__ import annotations

import io
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..core.errors import StorageError
from .reading import json_checksum
from .tensors import tensors_checksum


def cache_folder() -> Path:
    """Folder of data that can be recomputed: DIFFEM_CACHE, or `diffem` in the user's cache folder."""
    own = os.environ.get("DIFFEM_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "diffem"


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically. If this fails, an existing file stays unchanged.

    Raises:
        StorageError: If the file cannot be written, with the reason.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
        try:
            partial.unlink(missing_ok=True)
            # O_EXCL creates a new file: an existing link with this name is not followed
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0), 0o666)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # so that the rename survives a power failure
        finally:
            os.close(folder)
    except OSError as error:
        raise StorageError(
            error.errno, f"{path} cannot be written: {error.strerror or error}; nothing half-written is left"
        ) from None


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically. A mapping gets a key `checksum`, which `read_json` verifies and removes."""
    if isinstance(value, dict):
        value = {name: item for name, item in value.items() if name != "checksum"}
        value["checksum"] = json_checksum(value)
    write_text(path, json.dumps(value, indent=1) + "\n")


def portable_json(value: Any, indent: int | None = None) -> str:
    """Format JSON for other programs: NaN and infinite numbers, which JSON does not have, become null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_tensors(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    """Write tensors and their description as a safetensors file, atomically, with a checksum (see `tensors.py`)."""
    from safetensors.torch import save

    description = {name: value for name, value in description.items() if name != "sha256"}
    description["sha256"] = tensors_checksum(tensors, description)
    write_bytes(path, save(tensors, {"diffem": json.dumps(description)}))


def write_array(path: Path, array: np.ndarray) -> None:
    """Write an array as a `.npy` file, atomically."""
    write_bytes(path, array_bytes(array))


def array_bytes(array: np.ndarray) -> bytes:
    """The bytes of a `.npy` file; the array is copied only once."""
    header, array = io.BytesIO(), np.ascontiguousarray(array)
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(array))
    return b"".join([header.getvalue(), array.reshape(-1).view("u1").data])


def clear_partials(folder: Path) -> None:
    """Remove the temporary files of interrupted writes."""
    for path in folder.rglob(".*.partial"):
        path.unlink(missing_ok=True)


def notice(text: str) -> None:
    """Print a line to standard error about a problem that was corrected."""
    print(f"diffem: {text}", file=sys.stderr, flush=True)
