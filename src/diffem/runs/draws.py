"""The draws of a lap on disk: one `.npy` file per shard, and a `.json` file with its statistics, checksum and origin.

Reading verifies the checksum and the origin. A damaged shard counts as missing: `has` returns False and prints the
reason. A shard of another lap or run is renamed. Training reads all draws into memory if they fit, otherwise on demand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import ForeignFileError, InputError
from ..files import memory
from ..files.arrays import array_rows, read_array
from ..files.origin import Origin, require_origin, stamped
from ..files.reading import digest, file_digest, read_json, require_inside
from ..files.rows import RowsInFile
from ..files.writing import array_bytes, notice, write_bytes, write_json
from .repair import rename_unusable
from .rundir import RunDir

OTHERS = ("sha256", "origin")  # entries of a shard's report that are not numbers


class DrawStore:
    """The shards of a lap; the array of a shard is `(draws, observations of the shard, *event)`.

    Args:
        folder: The folder of the shards.
        observations: Number of training observations.
        shard: Number of observations per shard.
        origin: Lap and run of the shards, `RunDir.origin("draws", lap)`; None skips the verification of origins.
    """

    def __init__(self, folder: Path, observations: int, shard: int, origin: Origin | None = None) -> None:
        self.folder, self.observations, self.shard, self._origin = folder, observations, shard, origin

    @classmethod
    def of_lap(cls, run: RunDir, lap: int, observations: int, shard: int) -> DrawStore:
        """The shards of a lap of a run, for `observations` training observations."""
        return cls(run.lap(lap) / "draws", observations, shard, run.origin("draws", lap))

    def __len__(self) -> int:
        return -(-self.observations // self.shard)

    def range(self, k: int) -> tuple[int, int]:
        """Range [first, end) of the observations of shard k."""
        return k * self.shard, min((k + 1) * self.shard, self.observations)

    def origin(self, k: int) -> Origin | None:
        """The origin that shard k must have."""
        return None if self._origin is None else replace(self._origin, observations=self.range(k))

    def _files(self, k: int) -> tuple[Path, Path]:
        """The files of the array and of the statistics; raises `InputError` if a link leads out of the lap's folder."""
        array, report = self.folder / f"{k:05d}.npy", self.folder / f"{k:05d}.json"
        return require_inside(array, self.folder.parent), require_inside(report, self.folder.parent)

    def has(self, k: int) -> bool:
        """Whether shard k is on disk, complete and not damaged."""
        array, report = self._files(k)
        if not array.is_file() or not report.is_file():
            return False
        try:
            if self.report(k)["sha256"] != file_digest(array):
                raise InputError(f"{array} is damaged: its contents do not match their checksum")
        except ForeignFileError as error:  # not damaged, and perhaps the only copy of these draws
            rename_unusable(error, array, report)
            return False
        except InputError as error:
            notice(f"{error}; the draws of observations {self.range(k)[0]} to {self.range(k)[1] - 1} are recomputed")
            return False
        return True

    def write(self, k: int, x: Tensor, report: dict[str, Any]) -> None:
        """Write a shard: first its statistics with the checksum, then the array.

        Args:
            k: Number of the shard.
            x: `(draws, observations of the shard, *event)`.
            report: Statistics of the shard.
        """
        array_file, report_file = self._files(k)
        data = array_bytes(x.detach().cpu().numpy())
        write_json(report_file, stamped({**report, "sha256": digest(data)}, self.origin(k)))
        write_bytes(array_file, data)

    def read(self, k: int) -> Tensor:
        """Read the draws of shard k and verify their checksum."""
        file, (first, end) = self._files(k)[0], self.range(k)
        array = read_array(file, self.report(k)["sha256"])
        if array.dtype.kind != "f" or array.ndim < 2 or array.shape[1] != end - first or len(array) == 0:
            raise InputError(
                f"{file} must contain draws of {count_of(end - first, 'observation')}, got {array.dtype} {array.shape}"
            )
        return torch.from_numpy(array)

    def rows(self, k: int) -> RowsInFile:
        """Rows of the file of shard k, `(draws · observations, *event)`, without verification of the checksum."""
        array = array_rows(self._files(k)[0])
        if len(array.shape) < 2:
            raise InputError(f"{array.path} must contain draws of observations, got an array of shape {array.shape}")
        draws, observations, *event = array.shape
        return RowsInFile(array.path, array.dtype, (draws * observations, *event), array.offset)

    def report(self, k: int) -> dict[str, Any]:
        """Statistics of shard k, with its checksum and origin."""
        file = self._files(k)[1]
        report = read_json(file)
        if not isinstance(report, dict) or not isinstance(report.get("sha256"), str):
            raise InputError(f"{file} is not the report of a shard")
        wrong = [name for name, value in report.items() if name not in OTHERS and not isinstance(value, int | float)]
        if wrong:
            raise InputError(f"{file} is not the report of a shard: {', '.join(wrong)} must be numbers")
        require_origin(report, self.origin(k), file)
        return report

    def reports(self) -> Iterator[dict[str, Any]]:
        """Statistics of all shards."""
        for k in range(len(self)):
            yield self.report(k)

    def all(self, device: torch.device | str = "cpu") -> Tensor:
        """Read all draws, `(draws · observations, *event)`, one shard at a time to save memory."""
        x, start = torch.empty(0), 0
        for draws in self.shards():
            if start == 0:
                shape = len(draws) * self.observations, *draws.shape[2:]
                x = torch.empty(shape, dtype=draws.dtype, device=device)
            part = draws.flatten(0, 1)
            x[start : start + len(part)] = part.to(device)
            start += len(part)
        return x

    def shards(self) -> Iterator[Tensor]:
        """Read the draws of one shard after the other; all must have the shape of the first one."""
        shape: tuple[int, ...] | None = None
        for k in range(len(self)):
            draws = self.read(k)
            found = (len(draws), *draws.shape[2:])
            shape = shape or found
            if found != shape:
                raise InputError(f"{self._files(k)[0]} contains draws of another shape than {self._files(0)[0]}")
            yield draws

    def owners(self, draws: int) -> Tensor:
        """The observation of each draw of `all`, `(draws · observations,)`, with `draws` draws per observation."""
        ranges = (torch.arange(*self.range(k)) for k in range(len(self)))
        return torch.cat([index.repeat(draws) for index in ranges])


class StoredDraws:
    """The draws of a lap, `(draws · observations, *event)` in the order of `DrawStore.all`, read from disk on demand.

    The constructor verifies the checksum of every shard. Indexing returns a tensor on `device`.

    Args:
        device: Device of the returned tensors.

    Raises:
        InputError: If a shard is damaged or has another shape than the first one.
    """

    def __init__(self, store: DrawStore, device: torch.device | str = "cpu") -> None:
        self.device = torch.device(device)
        for draws in store.shards():
            self.dtype, self.shape = draws.dtype, (len(draws) * store.observations, *draws.shape[2:])
            self._per_shard = len(draws) * store.shard
        self._shards = [store.rows(k) for k in range(len(store))]

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
