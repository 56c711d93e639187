"""The origin of a run's files: every file that a later step reads contains the name, seed and lap of its run.

Files of draws also contain the range of their observations. A checksum shows that a file is intact, but not that it
belongs in its place: a prior of another lap, seed or run is intact too. The name of a run is a hash of its seed, recipe
and observations, so a run that was interrupted and resumed writes the same bytes as an uninterrupted one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.errors import ForeignFileError
from .reading import StrPath


@dataclass(frozen=True)
class Origin:
    """The file of a run that an object was written for.

    Attributes:
        kind: The content of the file: "start" (unfinished Gaussian start), "prior", "training" (unfinished training),
            "optimizer", "draws", "losses" or "metrics".
        run: The name of the run, see `runs/rundir.py`.
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
            raise ForeignFileError(f"{path} contains no name of a run; every file of this run must contain it")
        expected = self.note()
        for name in ("kind", "seed", "run", "lap", "observations"):
            if (found := note.get(name)) != expected.get(name):
                given, needed = _words(name, found), _words(name, expected.get(name))
                raise ForeignFileError(f"{path} does not belong here: it has {given}, needed: {needed}")


def stamped(values: dict[str, Any], origin: Origin | None) -> dict[str, Any]:
    """Add the origin to the values of a file; None leaves them unchanged (run folders of format 2 and earlier)."""
    return values if origin is None else {**values, "origin": origin.note()}


def require_origin(values: dict[str, Any], origin: Origin | None, path: StrPath) -> None:
    """Raise a `ForeignFileError` if the values of a file name another origin; None skips the comparison."""
    if origin is not None:
        origin.require(values.get("origin"), path)


def _words(name: str, value: Any) -> str:
    if name == "observations" and isinstance(value, list) and len(value) == 2:
        return f"observations {str(value[0])[:20]} to {str(value[1])[:20]} (exclusive)"
    return f"{name} {str(value)[:32]}"
