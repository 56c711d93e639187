"""Hashes of observations. A run is resumed only with the observations it started with."""

from __future__ import annotations

import hashlib

import numpy as np
from torch import Tensor

from ..files.reading import digest, json_checksum
from .lazy import LazyObservations
from .observations import Observations


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """Hash named tensors by their bytes."""
    return _combined({name: _TensorHash(tensor) for name, tensor in tensors.items()})


class _TensorHash:
    """Hash dtype, shape and bytes of a tensor, which may come in parts along its first axis."""

    def __init__(self, tensor: Tensor) -> None:
        array = _array(tensor)
        self.dtype, self.shape, self.bytes = array.dtype, array.shape, hashlib.sha256()
        self._update(array)

    def append(self, tensor: Tensor) -> None:
        self.shape = (self.shape[0] + len(tensor), *self.shape[1:])
        self._update(_array(tensor))

    def _update(self, array: np.ndarray) -> None:
        # without a copy, since observations may be large
        self.bytes.update(array.reshape(-1).view("u1").data)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def _combined(hashed: dict[str, _TensorHash]) -> str:
    parts = [f"{name} {h.dtype} {h.shape} {h.bytes.hexdigest()}" for name, h in sorted(hashed.items())]
    return digest("\n".join(parts).encode())[:32]


def tensors_fingerprint(obs: Observations) -> str:
    """Compute `fingerprint(obs.tensors())`; observations on disk are read part by part."""
    if not isinstance(obs, LazyObservations) or obs.digest is not None:
        return fingerprint(obs.tensors())
    hashed: dict[str, _TensorHash] = {}
    for part in obs.parts():
        growing = part.per_observation()
        for name, tensor in part.tensors().items():
            if name not in hashed:
                hashed[name] = _TensorHash(tensor)
            elif name in growing:
                hashed[name].append(tensor)
    return _combined(hashed)


def data_fingerprint(obs: Observations) -> str:
    """Hash observations: every tensor, and the kinds and settings of operator and noise."""
    return json_checksum({"tensors": tensors_fingerprint(obs), "structure": obs.structure()})[:32]
