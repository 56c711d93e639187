"""Files that are whole or absent: written under a temporary name, synced, renamed."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import InputError


def write_bytes(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the rename itself survives a power cut
    finally:
        os.close(folder)


def write_text(path: Path, text: str) -> None:
    write_bytes(path, text.encode())


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=1) + "\n")


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {error}") from None


def write_tensors(path: Path, tensors: dict[str, Tensor], description: dict[str, Any]) -> None:
    from safetensors.torch import save

    write_bytes(path, save(tensors, {"diffem": json.dumps(description)}))


def write_array(path: Path, array: np.ndarray) -> None:
    write_bytes(path, array_bytes(array))


def array_bytes(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def read_array(path: Path) -> np.ndarray:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} cannot be read as an array: {error}") from None


def digest(data: bytes | memoryview) -> str:
    return hashlib.sha256(data).hexdigest()


def clear_partials(folder: Path) -> None:
    """Remove what an interrupted write left behind."""
    for path in folder.rglob(".*.partial"):
        path.unlink(missing_ok=True)
