"""The draws of a lap for training: in memory if they fit, otherwise read from their shards on demand."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files import memory
from .draws import DrawStore


class StoredDraws:
    """The draws of a lap, `(draws · observations, *event)` in the order of `DrawStore.all`, read from disk on demand.

    The constructor verifies the checksum of every shard. Indexing returns a tensor on `device`.

    Args:
        store: The shards.
        device: Device of the returned tensors.

    Raises:
        InputError: If a shard is corrupted or has another shape than the first one.
    """

    def __init__(self, store: DrawStore, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        first = store.read(0)
        self.dtype, self._shards = first.dtype, [store.rows(0)]
        for k in range(1, len(store)):
            if (len(draws := store.read(k)), *draws.shape[2:]) != (len(first), *first.shape[2:]):
                raise InputError(f"shard {k} in {store.folder} contains draws of another shape than shard 0")
            self._shards.append(store.rows(k))
        self.shape = (len(first) * store.observations, *first.shape[2:])
        self._per_shard = len(first) * store.shard

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Read the draws at `rows`, a tensor of any shape: `(*rows.shape, *event)`. Reads follow the order on disk."""
        requested = rows.flatten().cpu().numpy()
        order = np.argsort(requested, kind="stable")
        out = torch.empty(len(requested), *self.shape[1:], dtype=self.dtype)
        array, sorted_rows = out.numpy(), requested[order]
        ends = np.searchsorted(sorted_rows, self._per_shard * np.arange(1, len(self._shards) + 1))
        start = 0
        for k, end in enumerate(ends.tolist()):
            if end > start:
                array[order[start:end]] = self._shards[k][sorted_rows[start:end] - k * self._per_shard]
            start = end
        return out.reshape(*rows.shape, *self.shape[1:]).to(self.device)


def lap_draws(store: DrawStore, device: torch.device) -> Tensor | StoredDraws:
    """All draws of a lap: in the memory of `device` if they fit its budget (`memory.may_stay`), otherwise on demand."""
    size = sum(store.rows(k).nbytes for k in range(len(store)))
    return store.all(device) if memory.may_stay(size, device) else StoredDraws(store, device)
