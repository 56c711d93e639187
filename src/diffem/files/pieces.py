"""Tensors in several safetensors files of limited size, for media and services that limit the size of one file.

    model.safetensors                                                          one file
    model-00001-of-00003.safetensors … model-00003-of-00003.safetensors        several

A tensor that does not fit into the rest of a file continues in the next file. It is split between rows of its first
axis.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .reading import file_digest
from .tensors import read_header, read_tensors
from .writing import write_tensors

NAME = re.compile(r"(\w{1,40}?)(-\d{5}-of-\d{5})?\.safetensors")
MOST = 10_000  # largest number of files
HEADER = 1024  # upper bound on a file's header in bytes, without the description and the entries of tensors
ENTRY = 256  # upper bound on a tensor's entry in the header, in bytes
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}


def parse_size(text: str) -> int:
    """Parse a size: `15M` → 15,000,000 bytes. K, M and G are powers of 1000.

    Raises:
        InputError: If the text is not a positive size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMG]?)", text.strip().upper())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"a size is a positive number of bytes like 15M, got {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def write_pieces(
    folder: Path, name: str, tensors: dict[str, Tensor], description: dict[str, Any], most: int | None = None
) -> dict[str, dict[str, Any]]:
    """Write tensors to files in `folder`.

    Args:
        folder: Folder for the files.
        name: Beginning of the file names.
        tensors: Tensors by name.
        description: Description in the header of every file.
        most: Largest size of a file in bytes. Default: one file of any size.

    Returns:
        The size and SHA-256 of every file by its name, in the order in which the files must be read.

    Raises:
        InputError: If a row of a tensor does not fit into a file, or there would be too many files.
    """
    pieces = [tensors] if most is None else list(_pieces(tensors, most - HEADER - len(json.dumps(description))))
    if len(pieces) > MOST:
        raise InputError(f"pieces of at most {most} bytes would be {len(pieces)} files; at most {MOST} are written")
    count, files = len(pieces), {}
    for k, piece in enumerate(pieces, 1):
        path = folder / (f"{name}.safetensors" if count == 1 else f"{name}-{k:05d}-of-{count:05d}.safetensors")
        write_tensors(path, {key: t.contiguous() for key, t in piece.items()}, description)
        files[path.name] = {"sha256": file_digest(path), "bytes": path.stat().st_size}
    return files


def _pieces(tensors: dict[str, Tensor], capacity: int) -> Iterator[dict[str, Tensor]]:
    """Iterate over the tensors of each file; with their entries in the header they take at most `capacity` bytes."""
    piece: dict[str, Tensor] = {}
    left = capacity
    for name, tensor in tensors.items():
        row = max(1, tensor[0].nbytes if tensor.ndim and len(tensor) else tensor.nbytes)
        if row + ENTRY > capacity:
            raise InputError(
                f"a piece is too small for {name}, whose rows of {row} bytes are not split; allow larger pieces"
            )
        rest = tensor
        while (fit := left - ENTRY) < rest.nbytes:  # split between rows; if no row fits, begin the next file
            if rest.ndim and fit >= row:
                piece[name], rest = rest[: fit // row], rest[fit // row :]
            yield piece
            piece, left = {}, capacity
        piece[name] = rest
        left -= rest.nbytes + ENTRY
    yield piece


def require_files(files: Any, name: str, where: str) -> dict[str, str]:
    """Extract the SHA-256 of every file by its name from an untrusted list of files.

    Raises:
        InputError: If the list is not what `write_pieces` returns for `name`.
    """
    if not isinstance(files, dict) or not 0 < len(files) <= MOST:
        raise InputError(f"{where}: the card contains no hash for {name}.safetensors")
    for file, entry in files.items():
        if (match := NAME.fullmatch(file)) is None or match[1] != name:
            raise InputError(f"{where}: {file[:80]!r} is not the name of a file of weights")
        if not isinstance(entry, dict) or not isinstance(entry.get("sha256"), str):
            raise InputError(f"{where}: the card contains no hash for {file}")
    return {file: entry["sha256"] for file, entry in files.items()}


def shapes_in_pieces(folder: Path, files: dict[str, str], what: str) -> dict[str, tuple[int, ...]]:
    """Read the shapes of all tensors from the headers alone."""
    shapes: dict[str, tuple[int, ...]] = {}
    for file in files:
        for name, shape in read_header(folder / file, what)[0].items():
            shapes[name] = (shapes[name][0] + shape[0], *shape[1:]) if shapes.get(name) and shape else shape
    return shapes


def read_pieces(folder: Path, files: dict[str, str], what: str) -> dict[str, Tensor]:
    """Read all tensors.

    Raises:
        InputError: If a file is missing, damaged or has another SHA-256; the message names the file.
    """
    parts: dict[str, list[Tensor]] = {}
    for file, sha256 in files.items():
        if file_digest(folder / file) != sha256:
            raise InputError(
                f"{folder / file} is not the file the card describes: its SHA-256 differs from {sha256[:16]}…"
            )
        for name, tensor in read_tensors(folder / file, what)[0].items():
            parts.setdefault(name, []).append(tensor)
    return {name: some[0] if len(some) == 1 else torch.cat(some) for name, some in parts.items()}


def is_piece(file: str, name: str) -> bool:
    """Whether `write_pieces` would give a file this name."""
    match = NAME.fullmatch(file)
    return match is not None and match[1] == name
