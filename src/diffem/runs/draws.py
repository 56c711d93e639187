"""The draws of a lap on disk: one `.npy` per shard, and in a `.json` beside it what making it took, its checksum and its origin.

Whatever is read is compared with its checksum and its place first. A shard that is damaged counts as not made: `has` says so, names the
file and why. One that belongs to another lap or run is set aside.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core.errors import ForeignFileError, InputError
from ..files.arrays import array_rows
from ..files.origin import Origin
from ..files.reading import require_inside
from ..files.rows import RowsInFile
from ..files.writing import array_bytes, digest, file_digest, notice, read_array, read_json, write_bytes, write_json
from .repair import set_aside
from .rundir import RunDir

NUMBERS = (
    "draws",
    "informed",
    "rejected",
    "redrawn",
    "kept",
    "replaced",
    "not_finite",
    "misfit",
    "outside",
    "stuck",
    "chi2",
    "guards",
    "evaluations",
)  # of a report


class DrawStore:
    """Shards of `shard` observations each; a shard's array is `(draws, observations in it, *event)`.

    origin: what the shards name as theirs beside their range, `RunDir.origin("draws", lap)`; nothing is named or compared when absent.
    """

    def __init__(self, folder: Path, observations: int, shard: int, origin: Origin | None = None) -> None:
        self.folder, self.observations, self.shard, self._origin = folder, observations, shard, origin

    @classmethod
    def of_lap(cls, run: RunDir, lap: int, observations: int, shard: int) -> DrawStore:
        """The draws of a lap of a run, for `observations` training observations."""
        return cls(run.lap(lap) / "draws", observations, shard, run.origin("draws", lap))

    def __len__(self) -> int:
        return -(-self.observations // self.shard)

    def range(self, k: int) -> tuple[int, int]:
        return k * self.shard, min((k + 1) * self.shard, self.observations)

    def origin(self, k: int) -> Origin | None:
        """What shard k names as its origin."""
        return None if self._origin is None else replace(self._origin, observations=self.range(k))

    def _files(self, k: int) -> tuple[Path, Path]:
        """The array and the report; both lie in the lap's folder, whatever links may say."""
        array, report = self.folder / f"{k:05d}.npy", self.folder / f"{k:05d}.json"
        return require_inside(array, self.folder.parent), require_inside(report, self.folder.parent)

    def has(self, k: int) -> bool:
        """Whether shard k is on disk, whole and unchanged."""
        array, report = self._files(k)
        if not array.is_file() or not report.is_file():
            return False
        try:
            if self.report(k)["sha256"] != file_digest(array):
                raise InputError(f"{array} is damaged: its contents do not match their checksum")
        except ForeignFileError as error:  # whole, and perhaps the only copy of another run's draws
            set_aside(error, array, report)
            return False
        except InputError as error:
            notice(f"{error}; the draws of observations {self.range(k)[0]} to {self.range(k)[1] - 1} are made again")
            return False
        return True

    def write(self, k: int, x: Tensor, report: dict[str, Any]) -> None:
        """The report goes first: a shard whose array is there has its checksum."""
        array_file, report_file = self._files(k)
        data, origin = array_bytes(x.detach().cpu().numpy()), self.origin(k)
        named = {} if origin is None else {"origin": origin.note()}
        write_json(report_file, {**report, "sha256": digest(data), **named})
        write_bytes(array_file, data)

    def read(self, k: int) -> Tensor:
        """The draws of shard k, compared with their checksum as they are read."""
        file, (first, end) = self._files(k)[0], self.range(k)
        array = read_array(file, self.report(k)["sha256"])
        if array.dtype.kind != "f" or array.ndim < 2 or array.shape[1] != end - first or len(array) == 0:
            raise InputError(f"{file} holds {array.dtype} {array.shape}; needed: draws of {end - first} observations")
        return torch.from_numpy(array)

    def rows(self, k: int) -> RowsInFile:
        """The draws of shard k as they lie in its file, `(draws · observations, *event)`; `read` compares them with their checksum."""
        array = array_rows(self._files(k)[0])
        if len(array.shape) < 2:
            raise InputError(f"{array.path} holds an array of shape {array.shape}, not draws of observations")
        draws, observations, *event = array.shape
        return RowsInFile(array.path, array.dtype, (draws * observations, *event), array.offset)

    def report(self, k: int) -> dict[str, Any]:
        """What making shard k took."""
        file = self._files(k)[1]
        report = read_json(file)
        if not isinstance(report, dict) or not isinstance(report.get("sha256"), str):
            raise InputError(f"{file} is not the report of a shard")
        if not all(isinstance(report.get(name, 0), int | float) for name in NUMBERS):
            raise InputError(f"{file} is not the report of a shard: {', '.join(NUMBERS)} should be numbers")
        if (origin := self.origin(k)) is not None:
            origin.require(report.get("origin"), file)
        return report

    def reports(self) -> Iterator[dict[str, Any]]:
        for k in range(len(self)):
            yield self.report(k)

    def all(self, device: torch.device | str = "cpu") -> Tensor:
        """Every draw, `(draws · observations, *event)`, read shard by shard: beside the result only one shard is in memory."""
        first = self.read(0)
        x = torch.empty(len(first) * self.observations, *first.shape[2:], dtype=first.dtype, device=device)
        start = 0
        for k in range(len(self)):
            draws = self.read(k) if k else first
            if (len(draws), *draws.shape[2:]) != (len(first), *first.shape[2:]):
                raise InputError(f"{self._files(k)[0]} holds draws of another form than {self._files(0)[0]}")
            part = draws.flatten(0, 1)
            x[start : start + len(part)] = part.to(device)
            start += len(part)
        return x

    def owners(self, draws: int) -> Tensor:
        """The observation each of `all` is a draw for, `(draws · observations,)`, with `draws` of every observation."""
        ranges = (torch.arange(*self.range(k)) for k in range(len(self)))
        return torch.cat([index.repeat(draws) for index in ranges])
