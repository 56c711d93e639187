"""The origin of a run's files: every file that a later step reads names its run, seed and lap, and draws their observations.

A checksum shows that a file is whole, not that it belongs where it is: a prior of another lap, seed or run is whole too. The name of a
run is a hash of its seed, recipe and observations, so an interrupted run and its undisturbed twin write the same bytes.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from ..core.errors import ForeignFileError
from ..files.reading import StrPath, digest, json_checksum

if TYPE_CHECKING:
    from ..data import Observations
    from .recipe import Recipe

# What does not decide the contents of a run's files: more laps may be added later, the observations have a fingerprint of their own.
NOT_IN_NAME = {"name", "about", "laps", "data"}


@dataclass(frozen=True)
class Origin:
    """The file of a run that an object was written for.

    Attributes:
        kind: What the file holds: "start" (an unfinished one), "prior", "training" (an unfinished one), "optimizer", "draws", "losses" or
            "metrics".
        run: The name of the run, see `run_name`.
        seed: The run's seed.
        lap: The lap of this run, counted from its own start.
        observations: The range [first, end) of training observations that draws belong to; None for the other kinds.
    """

    kind: str
    run: str
    seed: int
    lap: int
    observations: tuple[int, int] | None = None

    def note(self) -> dict[str, Any]:
        """The origin as JSON values, to be stored in the file."""
        note: dict[str, Any] = {"kind": self.kind, "run": self.run, "seed": self.seed, "lap": self.lap}
        return note if self.observations is None else {**note, "observations": list(self.observations)}

    def require(self, note: Any, path: StrPath) -> None:
        """Compare the origin that a file names with this one.

        Raises:
            ForeignFileError: If the file names another origin, or none.
        """
        if not isinstance(note, dict):
            raise ForeignFileError(f"{path} does not name the run it belongs to, as the files of this run do")
        expected = self.note()
        for name in ("kind", "seed", "run", "lap", "observations"):
            if (found := note.get(name)) != expected.get(name):
                given, needed = _words(name, found), _words(name, expected.get(name))
                raise ForeignFileError(f"{path} belongs elsewhere: it names {given}, this place needs {needed}")


def _words(name: str, value: Any) -> str:
    if name == "observations" and isinstance(value, list) and len(value) == 2:
        return f"observations {str(value[0])[:20]} to {str(value[1])[:20]} (exclusive)"
    return f"{name} {str(value)[:32]}"


def run_name(recipe: Recipe, observations: str, start: str | None) -> str:
    """The name of a run, a hash of all that decides what it computes.

    Args:
        recipe: The recipe; `NOT_IN_NAME` lists the keys that are left out.
        observations: The fingerprint of the observations.
        start: The fingerprint of a prior that was passed from Python to start from; None if there is none.
    """
    settings = {name: value for name, value in recipe.model_dump(mode="json").items() if name not in NOT_IN_NAME}
    return json_checksum({"recipe": settings, "observations": observations, "start": start})[:32]


def fingerprint(tensors: dict[str, Tensor]) -> str:
    """A hash of named tensors, the same whenever their bytes are."""
    return _combined({name: _Hashed(tensor) for name, tensor in tensors.items()})


class _Hashed:
    """A tensor's type, shape and bytes, which may come in parts along its first axis."""

    def __init__(self, tensor: Tensor) -> None:
        array = _array(tensor)
        self.dtype, self.shape, self.bytes = array.dtype, array.shape, hashlib.sha256()
        self._update(array)

    def append(self, tensor: Tensor) -> None:
        self.shape = (self.shape[0] + len(tensor), *self.shape[1:])
        self._update(_array(tensor))

    def _update(self, array: np.ndarray) -> None:
        # the array's own memory, not a copy of it: observations may be large
        self.bytes.update(array.reshape(-1).view("u1").data)


def _array(tensor: Tensor) -> np.ndarray:
    return tensor.detach().cpu().contiguous().numpy()


def _combined(hashed: dict[str, _Hashed]) -> str:
    parts = [f"{name} {h.dtype} {h.shape} {h.bytes.hexdigest()}" for name, h in sorted(hashed.items())]
    return digest("\n".join(parts).encode())[:32]


def tensors_fingerprint(obs: Observations) -> str:
    """`fingerprint(obs.tensors())`; observations on disk are read part by part."""
    from ..data.stored import StoredObservations

    if not isinstance(obs, StoredObservations) or obs.digest is not None:
        return fingerprint(obs.tensors())
    hashed: dict[str, _Hashed] = {}
    for part in obs.parts():
        growing = part.per_observation()
        for name, tensor in part.tensors().items():
            if name not in hashed:
                hashed[name] = _Hashed(tensor)
            elif name in growing:
                hashed[name].append(tensor)
    return _combined(hashed)


def data_fingerprint(obs: Observations) -> str:
    """A hash of observations: of every tensor, and of the kinds and settings of operator and noise, which hold no tensors."""
    return json_checksum({"tensors": tensors_fingerprint(obs), "structure": obs.structure()})[:32]
