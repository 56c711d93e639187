"""The draws of a lap on disk: one `.npy` per shard, with what making it took and its checksum in a `.json` beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..runs.files import array_bytes, digest, read_array, read_json, write_bytes, write_json


class DrawStore:
    """Shards of `shard` observations each; a shard's array is `(draws, observations in it, *event)`."""

    def __init__(self, folder: Path, observations: int, shard: int) -> None:
        self.folder, self.observations, self.shard = folder, observations, shard

    def __len__(self) -> int:
        return -(-self.observations // self.shard)

    def range(self, k: int) -> tuple[int, int]:
        return k * self.shard, min((k + 1) * self.shard, self.observations)

    def _files(self, k: int) -> tuple[Path, Path]:
        return self.folder / f"{k:05d}.npy", self.folder / f"{k:05d}.json"

    def has(self, k: int) -> bool:
        """Whether shard k is on disk, whole and unchanged."""
        array, report = self._files(k)
        if not array.is_file() or not report.is_file():
            return False
        return read_json(report).get("sha256") == digest(array.read_bytes())

    def write(self, k: int, x: Tensor, report: dict[str, Any]) -> None:
        """The report goes first: a shard whose array is there has its checksum."""
        array_file, report_file = self._files(k)
        data = array_bytes(x.detach().cpu().numpy())
        write_json(report_file, {**report, "sha256": digest(data)})
        write_bytes(array_file, data)

    def read(self, k: int) -> Tensor:
        return torch.from_numpy(read_array(self._files(k)[0]))

    def reports(self) -> Iterator[dict[str, Any]]:
        for k in range(len(self)):
            yield read_json(self._files(k)[1])

    def all(self, device: torch.device | str = "cpu") -> Tensor:
        """Every draw, `(draws · observations, *event)`, read shard by shard: beside the result only one shard is in memory."""
        first = self.read(0)
        x = torch.empty(len(first) * self.observations, *first.shape[2:], dtype=first.dtype, device=device)
        start = 0
        for k in range(len(self)):
            part = self.read(k).flatten(0, 1)
            x[start : start + len(part)] = part.to(device)
            start += len(part)
        return x
