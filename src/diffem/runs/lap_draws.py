"""The draws of a lap as training uses them: all in memory where they fit, read from their shards where they do not."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..core.errors import InputError
from ..files import memory
from .draws import DrawStore


class StoredDraws:
    """The draws of a lap, `(draws · observations, *event)` in the order of `DrawStore.all`, read from disk as they are used.

    Every shard is compared with its checksum once, when this is made. `draws[rows]` is a tensor on `device`, as if the draws were one.
    """

    def __init__(self, store: DrawStore, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        first = store.read(0)
        self.dtype, self._shards = first.dtype, [store.rows(0)]
        for k in range(1, len(store)):
            if (len(draws := store.read(k)), *draws.shape[2:]) != (len(first), *first.shape[2:]):
                raise InputError(f"shard {k} in {store.folder} holds draws of another form than shard 0")
            self._shards.append(store.rows(k))
        self.shape = (len(first) * store.observations, *first.shape[2:])
        self._per_shard = len(first) * store.shard

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def ndim(self) -> int:
        return len(self.shape)

    def __getitem__(self, rows: Tensor) -> Tensor:
        """Draws at `rows`, of any shape: `(*rows.shape, *event)`. They are read in the order in which they lie on disk."""
        wanted = rows.flatten().cpu().numpy()
        order = np.argsort(wanted, kind="stable")
        out = torch.empty(len(wanted), *self.shape[1:], dtype=self.dtype)
        array, sorted_rows = out.numpy(), wanted[order]
        ends = np.searchsorted(sorted_rows, self._per_shard * np.arange(1, len(self._shards) + 1))
        start = 0
        for k, end in enumerate(ends.tolist()):
            if end > start:
                array[order[start:end]] = self._shards[k][sorted_rows[start:end] - k * self._per_shard]
            start = end
        return out.reshape(*rows.shape, *self.shape[1:]).to(self.device)


def lap_draws(store: DrawStore, device: torch.device) -> Tensor | StoredDraws:
    """Every draw of a lap: kept in the memory of `device` if they fit its budget (`memory.may_stay`), read as they are used otherwise."""
    size = sum(store.rows(k).nbytes for k in range(len(store)))
    return store.all(device) if memory.may_stay(size, device) else StoredDraws(store, device)
