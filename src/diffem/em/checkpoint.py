"""Checkpoints: an interrupted training or Gaussian start resumes from the state it wrote last."""

from __future__ import annotations

import math
import time
from pathlib import Path
from types import TracebackType
from typing import Self

import torch

from ..core.errors import InputError
from ..files.origin import Origin, require_origin, stamped
from ..files.tensors import read_tensors
from ..files.writing import notice, write_tensors
from ..priors import FitState
from .training_blocks import SavedTraining, TrainingRecord


def write_checkpoint(
    path: Path, done: int, state: dict[str, torch.Tensor], record: TrainingRecord, origin: Origin | None = None
) -> None:
    """Write the state of a training.

    Args:
        done: The steps that are done.
        origin: The run and lap of the file; None for run folders of format 2 and earlier.
    """
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    notes = {"done": done, "seconds": record.seconds, "losses": record.losses, "rollbacks": record.rollbacks}
    write_tensors(path, tensors, stamped(notes, origin))


def read_checkpoint(path: Path, origin: Origin | None = None) -> SavedTraining | None:
    """Read the state of an interrupted training.

    Args:
        origin: The run and lap that the file must belong to; None does not check them.

    Returns:
        The steps done, the state of the trainer and the record; None if there is no usable file.
    """
    if not path.is_file():
        return None
    try:
        tensors, description = read_tensors(path, "a checkpoint of a training")
        require_origin(description, origin, path)
        losses = [(int(step), float(loss)) for step, loss in description["losses"]]
        done, seconds, rollbacks = description["done"], description["seconds"], description["rollbacks"]
        record = TrainingRecord(int(done), float(seconds), losses, int(rollbacks))
    except (InputError, KeyError, TypeError, ValueError):  # the training starts again: only time is lost
        return None
    return record.steps, tensors, record


def recent_loss(record: TrainingRecord) -> float:
    """Return the mean loss over the last tenth of a training."""
    count = max(1, math.ceil(len(record.losses) * 0.1))
    recent = [loss for _, loss in record.losses[-count:]]
    return sum(recent) / len(recent)


class StartCheckpoint:
    """The state of a Gaussian start, written from time to time and when the fit ends with an exception.

    Args:
        path: The file; None writes nothing.
        seconds: Time between two writes.
        origin: The run that the file belongs to; None neither writes nor checks it.

    Attributes:
        stage: The number of the fit that the state belongs to, beginning with 0.
        state: The state of that fit; None at its beginning.
    """

    def __init__(self, path: Path | None, seconds: float, origin: Origin | None = None) -> None:
        self.path, self.seconds, self.origin = path, seconds, origin
        self.stage, self.state = self._read()
        self._written = time.monotonic()

    def _read(self) -> tuple[int, FitState | None]:
        if self.path is None or not self.path.is_file():
            return 0, None
        try:
            tensors, description = read_tensors(self.path, "the state of a Gaussian start")
            require_origin(description, self.origin, self.path)
            scores = [tensors.pop(name).tolist() for name in ("log_likelihood", "held_out")]
            return int(description["stage"]), FitState(tensors, *scores)
        except (InputError, KeyError, TypeError, ValueError) as error:
            notice(f"{error}; the start begins again")
            return 0, None

    def keep(self, stage: int, state: FitState) -> None:
        """Keep the state of a round in memory, and write it if that is due."""
        self.stage, self.state = stage, state
        if time.monotonic() - self._written > self.seconds:
            self._write()

    def _write(self) -> None:
        if self.path is None or self.state is None:
            return
        tensors = {name: t.detach().cpu().contiguous() for name, t in self.state.tensors.items()}
        tensors["log_likelihood"] = torch.tensor(self.state.log_likelihood, dtype=torch.float64)
        tensors["held_out"] = torch.tensor(self.state.held_out, dtype=torch.float64)
        write_tensors(self.path, tensors, stamped({"stage": self.stage}, self.origin))
        self._written = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._write()
