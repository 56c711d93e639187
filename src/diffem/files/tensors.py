"""Named tensors with a description in a safetensors file. Reading it executes no code.

The metadata in the header contains the description as JSON under the key `diffem`. Its entry `sha256` is a hash of the
rest of the description and of the name, type, shape and bytes of every tensor. Files without a hash are read without
this check: files of other programs, and files of older versions of diffem.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from . import memory
from .reading import StrPath, open_checked, parse_json, size_of
from .rows import RowsInFile

HEADER_BYTES, TENSORS = 24 << 20, 20_000
NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1"}
NUMPY |= {"U8": "u1", "BOOL": "?"}
SUPPORTED = (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128)


def tensors_checksum(tensors: dict[str, Tensor], description: dict[str, Any]) -> str:
    """Hash of the description and of the name, type, shape and bytes of every tensor."""
    value = _described(description)
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        _begin(value, name, tensor.dtype, list(tensor.shape))
        if tensor.numel():
            flat = tensor.reshape(-1)
            if flat.stride(0) != 1:  # a single number may have any stride
                flat = flat.clone(memory_format=torch.contiguous_format)
            value.update(flat.view(torch.uint8).numpy().data)
    return value.hexdigest()


def _described(description: dict[str, Any]) -> hashlib._Hash:
    """Start a hash with the description without its entry `sha256`."""
    hashed = {name: value for name, value in description.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(hashed).encode())


def _begin(value: hashlib._Hash, name: str, dtype: torch.dtype, shape: list[int]) -> None:
    value.update(f"\n{name} {dtype} {shape}\n".encode())


def read_tensors(path: StrPath, what: str = "tensors") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read all tensors of a file and its description.

    Args:
        path: The file.
        what: The expected content of the file in error messages.

    Returns:
        Tensors by name, and the description without its hash.

    Raises:
        InputError: If the file is damaged, or needs more memory than is available.
    """
    with _tensor_file(path, what) as (file, size, description):
        memory.require(size, str(path))
        # clone() copies out of the mapped file: complex arithmetic needs alignment, and the file may change
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 (not a mapping)
    if "sha256" in description and description.pop("sha256") != tensors_checksum(tensors, description):
        raise InputError(f"{path} is damaged: its contents do not match its checksum")
    return tensors, description


def read_header(path: StrPath, what: str = "tensors") -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """Read the shapes of the tensors and the description from the header alone; the checksum is not verified."""
    with _tensor_file(path, what) as (file, _, description):
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    description.pop("sha256", None)
    return shapes, description


def tensor_rows(path: StrPath, what: str = "tensors") -> tuple[dict[str, RowsInFile], dict[str, Any]]:
    """Open the tensors of a file, whose rows are read when they are used, and read the description.

    The checksum is verified once, block by block.

    Raises:
        InputError: If the file is damaged, or contains a type that NumPy does not support.
    """
    path = Path(path)
    with _tensor_file(path, what) as (_, size, description):
        pass  # safetensors has compared the header with the file: offsets, types and shapes agree
    with open_checked(path) as file:
        start = size_of(file) - size
        header = parse_json(file.read(start)[8:].decode(), f"{path}: the header")
    rows = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in NUMPY:
            raise InputError(f"{path}: {name} is {entry['dtype']}; needed: float32 or float64")
        place = start + entry["data_offsets"][0]
        rows[name] = RowsInFile(path, np.dtype(NUMPY[entry["dtype"]]), tuple(entry["shape"]), place)
    if "sha256" in description:
        value = _described(description)
        for name in sorted(rows):
            _begin(value, name, _torch_dtype(rows[name].dtype), list(rows[name].shape))
            for block in rows[name].blocks():
                value.update(block.reshape(-1).view(np.uint8).data)
        if value.hexdigest() != description.pop("sha256"):
            raise InputError(f"{path} is damaged: its contents do not match its checksum")
    return rows, description


def _torch_dtype(dtype: np.dtype) -> torch.dtype:
    return torch.from_numpy(np.empty(0, dtype)).dtype


@contextmanager
def _tensor_file(path: StrPath, what: str) -> Iterator[tuple[Any, int, dict[str, Any]]]:
    """Open a file with safetensors; yields the reader, the size of its tensors in bytes, and its description.

    Raises:
        InputError: If the file cannot be read. All errors inside the `with` statement are converted to `InputError`.
    """
    from safetensors import safe_open

    path = Path(path)
    with open_checked(path) as file:
        size, start = size_of(file), file.read(8)
        header = int.from_bytes(start, "little")
        if len(start) < 8 or not 2 <= header <= min(HEADER_BYTES, size - 8):
            claim = f"it claims a header of {header} bytes in" if len(start) == 8 else "it has only"
            raise InputError(
                f"{path} cannot be read as {what}: it is not a safetensors file, or is damaged ({claim} "
                f"{count_of(size, 'byte')})"
            )
        entries = file.read(header).count(b'"data_offsets"')
    try:
        _require_few(entries)  # checked before the parser allocates an object per tensor
        with safe_open(str(path), "pt") as tensor_file:
            _require_few(len(tensor_file.keys()))  # counted again: JSON can spell "data_offsets" with escapes
            notes = (tensor_file.metadata() or {}).get("diffem", "{}")
            description = parse_json(notes, f"{path}: the description in the header")
            if not isinstance(description, dict):
                raise InputError("its description is not a mapping")
            yield tensor_file, size - 8 - header, description
    except InputError as error:
        text = str(error)
        raise InputError(text if str(path) in text else f"{path} cannot be read as {what}: {text}") from None
    except Exception as error:  # safetensors raises its own kinds of exceptions, all caused by the file
        raise InputError(f"{path} cannot be read as {what}: {explain(error)}") from None


def _require_few(count: int) -> None:
    if count > TENSORS:
        raise InputError(f"it holds {count} tensors, the limit is {TENSORS}")


def explain(error: Exception) -> str:
    """Describe an error in one line: the text of an `InputError`, otherwise the type of the error and its text."""
    text = str(error) if isinstance(error, InputError) else f"{type(error).__name__}: {error}"
    return (text.splitlines() or [repr(error)])[0][:400]


def require_finite(tensors: dict[str, Tensor], path: StrPath) -> None:
    """Reject floating-point tensors with entries that are not finite, and types with little support in PyTorch.

    Raises:
        InputError: If a tensor is rejected.
    """
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() or tensor.is_complex()):
            continue
        if tensor.dtype not in SUPPORTED:
            raise InputError(f"{path}: {name} is {tensor.dtype}; needed: float32 or float64")
        if not torch.isfinite(tensor).all():
            raise InputError(f"{path}: {name} holds values that are not finite")
