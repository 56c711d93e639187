"""Observations that stay where they are, on disk, until a part of them is used.

A shelf knows how many observations it holds and reads any of them. Indexing stored observations only remembers which ones are meant;
asking for y, A or the noise, or moving them to a device, reads those and no others. So a run that works shard by shard needs memory for
one shard, however many observations there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core.batched import Index, as_index
from ..core.errors import InputError
from ..files import memory
from ..files.reading import digest
from ..linalg import Covariance
from ..operators import Operator
from .batches import bytes_each, scanned_together
from .observations import Observations


class Shelf(Protocol):
    """Where stored observations come from.

    A shelf may also have `counts(rows)`, how many values those observations measure `(m,)`, and `operators(rows)`, their A, both without
    reading the values; and `adaptive` (see `Observations`).
    """

    x_shape: tuple[int, ...]

    @property
    def digest(self) -> str | None:
        """Of everything on the shelf, in hexadecimal; None: the observations are hashed as they are read."""
        ...

    def __len__(self) -> int: ...

    def read(self, rows: Tensor) -> Observations:
        """The observations at `rows` `(m,)`, in that order."""
        ...


class MemoryShelf:
    """Observations that are in memory already: rows are taken as they are used, not copied beforehand."""

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


class ScaledShelf:
    """The observations of a shelf in other units, scaled as they are read."""

    def __init__(self, shelf: Shelf, factor: float) -> None:
        self.shelf, self.factor, self.x_shape = shelf, factor, shelf.x_shape
        self.digest = shelf.digest and digest(f"{shelf.digest} × {factor!r}".encode())
        self.adaptive = getattr(shelf, "adaptive", False)

    def __len__(self) -> int:
        return len(self.shelf)

    def read(self, rows: Tensor) -> Observations:
        return self.shelf.read(rows).scaled(self.factor)

    def counts(self, rows: Tensor) -> Tensor:
        return StoredObservations(self.shelf, rows).counts()


class StoredObservations(Observations):
    """Some rows of a shelf, all of them when `rows` `(n,)` is not given. A part that has been read is kept."""

    def __init__(self, shelf: Shelf, rows: Tensor | None = None) -> None:
        self._shelf, self._rows = shelf, torch.arange(len(shelf)) if rows is None else rows
        self._read: Observations | None = None
        self.x_shape, self.adaptive = shelf.x_shape, getattr(shelf, "adaptive", False)

    @property
    def digest(self) -> str | None:
        """That of their shelf."""
        return self._shelf.digest

    def read(self) -> Observations:
        """These observations in memory."""
        if self._read is None:
            self._read = self._shelf.read(self._rows)
        return self._read

    def __getattr__(self, name: str) -> Any:  # called only for what __init__ did not set
        if name in ("y", "A", "cov"):
            return getattr(self.read(), name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Index) -> StoredObservations:
        if self._read is not None:
            return StoredObservations(MemoryShelf(self._read))._part(index)
        return self._part(index)

    def _part(self, index: Index) -> StoredObservations:
        rows = self._rows[as_index(index)]
        if len(rows) == 0:
            raise InputError(f"no observations left: {index} of {len(self)}")
        return StoredObservations(self._shelf, rows)

    def to(self, *args: Any, **kwargs: Any) -> Observations:
        # not kept: what is moved is used there
        return (self._read or self._shelf.read(self._rows)).to(*args, **kwargs)

    def scaled(self, factor: float) -> Observations:
        if self._read is not None:
            return StoredObservations(ScaledShelf(MemoryShelf(self._read), factor))
        return StoredObservations(ScaledShelf(self._shelf, factor), self._rows)

    def counts(self) -> Tensor:
        if self._read is not None:
            return self._read.counts()
        if hasattr(self._shelf, "counts"):
            return self._shelf.counts(self._rows)
        return counts_of(self.parts(), len(self))

    def operators(self) -> StoredOperators:
        """Their A, without reading all of them."""
        return StoredOperators(self._shelf, self._rows)

    def noises(self) -> StoredNoise:
        """Their Σ_y, without reading all of them."""
        return StoredNoise(self._shelf, self._rows)

    def reduced(self) -> Observations:
        return self.read().reduced()

    def tensors(self) -> dict[str, Tensor]:
        """What tells these observations from others: the shelf's digest and the rows, or where it has none every tensor."""
        if self._shelf.digest is None:
            return self.read().tensors()
        digest = torch.tensor(list(bytes.fromhex(self._shelf.digest)), dtype=torch.uint8)
        return {"shelf": digest, "rows": self._rows}

    def structure(self) -> dict[str, Any]:
        if self._shelf.digest is None:
            return self[:1].read().structure()
        return {"x_shape": list(self.x_shape), "adaptive": self.adaptive}  # the rest would have to be read

    def parts(self) -> Iterator[Observations]:
        """All of them in memory, a part at a time: observations whose shelf has no digest are hashed like this."""
        return (self._shelf.read(rows) for rows in self._rows.split(scanned_together(self)))

    def save(self, path: Any) -> None:
        self.read().save(path)

    def __repr__(self) -> str:
        return f"StoredObservations({len(self)} of {len(self._shelf)}, x {self.x_shape})"


class StoredOperators:
    """The operators of stored observations, read as they are used: `operators[rows]` is A of those observations."""

    def __init__(self, shelf: Shelf, rows: Tensor, device: torch.device | str = "cpu") -> None:
        self._shelf, self._rows, self._device = shelf, rows, torch.device(device)

    def __getitem__(self, index: Tensor) -> Operator:
        rows = self._rows[index.cpu()]
        if hasattr(self._shelf, "operators"):
            return self._shelf.operators(rows).to(self._device)
        return self._shelf.read(rows).A.to(self._device)

    def to(self, device: torch.device) -> Operator | StoredOperators:
        """On that device: read now and kept if they fit its budget (`memory.may_stay`), read as they are used otherwise."""
        everything = torch.arange(len(self._rows))
        first = self[everything[:1]]
        size = len(everything) * _bytes(first)
        if not hasattr(self._shelf, "operators"):  # they come with the values
            size = len(everything) * bytes_each(StoredObservations(self._shelf, self._rows))
        moved = StoredOperators(self._shelf, self._rows, device)
        return moved[everything] if memory.may_stay(size, device) else moved


class StoredNoise:
    """The noise of stored observations, read as it is used: `noises[rows]` is Σ_y of those observations."""

    def __init__(self, shelf: Shelf, rows: Tensor, device: torch.device | str = "cpu") -> None:
        self._shelf, self._rows, self._device = shelf, rows, torch.device(device)

    def __getitem__(self, index: Tensor) -> Covariance:
        rows = self._rows[index.cpu()]
        if hasattr(self._shelf, "noise"):
            return self._shelf.noise(rows).to(self._device)
        return self._shelf.read(rows).cov.to(self._device)

    def to(self, device: torch.device) -> Covariance | StoredNoise:
        """On that device: read now and kept if it fits its budget (`memory.may_stay`), read as it is used otherwise."""
        everything = torch.arange(len(self._rows))
        first = self[everything[:1]]
        size = len(everything) * sum(t.numel() * t.element_size() for t in first.per_observation().values())
        if not hasattr(self._shelf, "noise"):  # it comes with the values
            size = len(everything) * bytes_each(StoredObservations(self._shelf, self._rows))
        moved = StoredNoise(self._shelf, self._rows, device)
        return moved[everything] if memory.may_stay(size, device) else moved


def _bytes(A: Operator) -> int:
    own = sum(t.numel() * t.element_size() for t in A.per_observation().values())
    return own + sum(_bytes(child) for child in A.children())


def counts_of(parts: Iterable[Observations], n: int) -> Tensor:
    """How many values each of n observations measures, `(n,)`, from all of them in parts.

    Counts go into one tensor made beforehand: small tensors kept between large temporary ones would keep the memory of those from
    being given back.
    """
    counts, start = torch.empty(n, dtype=torch.int64), 0
    for part in parts:
        counts[start : start + len(part)] = part.counts()
        start += len(part)
    return counts


def stored(obs: Observations) -> StoredObservations:
    """The same observations, indexed without copying them."""
    return obs if isinstance(obs, StoredObservations) else StoredObservations(MemoryShelf(obs))
