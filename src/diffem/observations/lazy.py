"""Lazy observations: they stay on disk until a part of them is used.

A `Source` has a length and reads observations by their row numbers. Indexing lazy observations stores row numbers only.
Access to y, A or the noise, or a move to a device, reads these rows. A run that works shard by shard therefore needs
memory for one shard only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ..core.batched import BatchedValue, Index, as_index, take
from ..files import memory
from ..files.reading import digest
from ..linalg import Covariance
from ..operators import Operator
from .batches import bytes_each, scanned_together
from .observations import Observations

Part = TypeVar("Part", bound=BatchedValue)


class Source(Protocol):
    """A source of lazy observations.

    A source may also have `counts(rows)`, the numbers of measured values `(m,)`, `operators(rows)` and `noise(rows)`,
    which do not read y; and `adaptive` (see `Observations`).
    """

    x_shape: tuple[int, ...]

    @property
    def digest(self) -> str | None:
        """Hash of all observations in hexadecimal; None: they are hashed when they are read."""
        ...

    def __len__(self) -> int: ...

    def read(self, rows: Tensor) -> Observations:
        """Read the observations at `rows` `(m,)`, in that order."""
        ...


class MemorySource:
    """A source of observations in memory. Rows are copied when they are used."""

    digest = None

    def __init__(self, obs: Observations) -> None:
        self.obs, self.x_shape, self.adaptive = obs, obs.x_shape, obs.adaptive

    def __len__(self) -> int:
        return len(self.obs)

    def read(self, rows: Tensor) -> Observations:
        first, last = int(rows[0]), int(rows[-1])
        consecutive = last - first + 1 == len(rows) and bool((rows.diff() == 1).all())
        return self.obs[first : last + 1] if consecutive else self.obs[rows]

    def counts(self, rows: Tensor) -> Tensor:
        return self.obs.counts()[rows.to(self.obs.y.device)]

    def operators(self, rows: Tensor) -> Operator:
        return self.obs.A[rows]

    def noise(self, rows: Tensor) -> Covariance:
        return self.obs.cov[rows]


class ChangedSource:
    """The observations of a source, changed when they are read.

    Args:
        change: The change of observations, row by row.
        operators: What it does to their operators.
        name: The change in words, part of the hash of the observations.
    """

    def __init__(
        self,
        source: Source,
        change: Callable[[Observations], Observations],
        operators: Callable[[Operator], Operator],
        name: str,
    ) -> None:
        self._source, self._change, self._operators = source, change, operators
        self.x_shape, self.adaptive = source.x_shape, getattr(source, "adaptive", False)
        self.digest = source.digest and digest(f"{source.digest} {name}".encode())

    def __len__(self) -> int:
        return len(self._source)

    def read(self, rows: Tensor) -> Observations:
        return self._change(self._source.read(rows))

    def counts(self, rows: Tensor) -> Tensor:
        return LazyObservations(self._source, rows).counts()

    def operators(self, rows: Tensor) -> Operator:
        return self._operators(LazyOperators(self._source, rows)[torch.arange(len(rows))])


class LazyObservations(Observations):
    """Rows of a source, by default all. A part that has been read is kept."""

    def __init__(self, source: Source, rows: Tensor | None = None) -> None:
        self._source, self._rows = source, torch.arange(len(source)) if rows is None else rows
        self._read: Observations | None = None
        self.x_shape, self.adaptive = source.x_shape, getattr(source, "adaptive", False)

    @property
    def digest(self) -> str | None:
        """See `Source.digest`."""
        return self._source.digest

    def read(self) -> Observations:
        """Read these observations into memory."""
        if self._read is None:
            self._read = self._source.read(self._rows)
        return self._read

    def __getattr__(self, name: str) -> Any:  # called only for attributes that __init__ did not set
        if name in ("y", "A", "cov"):
            return getattr(self.read(), name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Index) -> LazyObservations:
        if self._read is not None:
            return LazyObservations(MemorySource(self._read))._part(index)
        return self._part(index)

    def _part(self, index: Index) -> LazyObservations:
        return LazyObservations(self._source, take(self._rows, as_index(index)))

    def to(self, *args: Any, **kwargs: Any) -> Observations:
        # not kept: the copy on the device is used
        return (self._read or self._source.read(self._rows)).to(*args, **kwargs)

    def changed(
        self,
        change: Callable[[Observations], Observations],
        name: str,
        operators: Callable[[Operator], Operator] = lambda A: A,
    ) -> LazyObservations:
        """These observations, changed when they are read; the arguments are those of `ChangedSource`."""
        return LazyObservations(ChangedSource(self._source, change, operators, name), self._rows)

    def scaled(self, factor: float) -> Observations:
        lazy = self if self._read is None else as_lazy(self._read)
        return lazy.changed(lambda obs: obs.scaled(factor), f"× {factor!r}")

    def counts(self) -> Tensor:
        if self._read is not None:
            return self._read.counts()
        if hasattr(self._source, "counts"):
            return self._source.counts(self._rows)
        return counts_of(self.parts(), len(self))

    def operators(self) -> LazyOperators:
        """The operators, without reading all of them."""
        return LazyOperators(self._source, self._rows)

    def noises(self) -> LazyNoise:
        """The noise covariances, without reading all of them."""
        return LazyNoise(self._source, self._rows)

    def reduced(self) -> Observations:
        return self.read().reduced()

    def tensors(self) -> dict[str, Tensor]:
        """Tensors that identify these observations: digest and rows, or all tensors if there is no digest."""
        if self._source.digest is None:
            return self.read().tensors()
        digest = torch.tensor(list(bytes.fromhex(self._source.digest)), dtype=torch.uint8)
        return {"shelf": digest, "rows": self._rows}  # these names are part of the fingerprints of existing runs

    def structure(self) -> dict[str, Any]:
        if self._source.digest is None:
            return self[:1].read().structure()
        return {"x_shape": list(self.x_shape), "adaptive": self.adaptive}  # other tensors would have to be read

    def parts(self) -> Iterator[Observations]:
        """Iterate over parts in memory, to hash observations whose source has no digest."""
        return (self._source.read(rows) for rows in self._rows.split(scanned_together(self)))

    def save(self, path: Any) -> None:
        self.read().save(path)

    def __repr__(self) -> str:
        return f"LazyObservations({len(self)} of {len(self._source)}, x {self.x_shape})"


class _LazyPart(Generic[Part]):
    """One part of lazy observations, read when it is used: `part[rows]` is that of these observations."""

    attribute: ClassVar[str]  # of `Observations`
    reader: ClassVar[str]  # the method of a source that reads it without y, if the source has one

    def __init__(self, source: Source, rows: Tensor, device: torch.device | str = "cpu") -> None:
        self._source, self._rows, self._device = source, rows, torch.device(device)

    def __getitem__(self, index: Tensor) -> Part:
        rows = self._rows[index.cpu()]
        read = getattr(self._source, self.reader, None)
        part: Part = getattr(self._source.read(rows), self.attribute) if read is None else read(rows)
        return part.to(self._device)

    def to(self, device: torch.device) -> Part | Self:
        """Move to a device: read now and kept within its budget (`memory.may_stay`), otherwise read when used."""
        everything = torch.arange(len(self._rows))
        each = _bytes(self[everything[:1]])
        if not hasattr(self._source, self.reader):  # it is read with the values
            each = bytes_each(LazyObservations(self._source, self._rows))
        moved = type(self)(self._source, self._rows, device)
        return moved[everything] if memory.may_stay(len(everything) * each, device) else moved


class LazyOperators(_LazyPart[Operator]):
    """The operators of lazy observations."""

    attribute, reader = "A", "operators"


class LazyNoise(_LazyPart[Covariance]):
    """The noise of lazy observations."""

    attribute, reader = "cov", "noise"


def _bytes(value: BatchedValue) -> int:
    """Bytes of the parameters per observation, including those of the parts of a composite operator."""
    own = sum(t.numel() * t.element_size() for t in value.per_observation().values())
    return own + (sum(map(_bytes, value.children())) if isinstance(value, Operator) else 0)


def counts_of(parts: Iterable[Observations], n: int) -> Tensor:
    """Count the measured values of each observation, `(n,)`, in parts.

    Counts are written into one preallocated tensor: small tensors between large temporary ones would fragment memory.
    """
    counts, start = torch.empty(n, dtype=torch.int64), 0
    for part in parts:
        counts[start : start + len(part)] = part.counts()
        start += len(part)
    return counts


def as_lazy(obs: Observations) -> LazyObservations:
    """Make the observations indexable without copies."""
    return obs if isinstance(obs, LazyObservations) else LazyObservations(MemorySource(obs))
