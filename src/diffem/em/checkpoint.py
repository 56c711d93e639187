"""A training that was interrupted goes on from what it wrote last."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from ..errors import InputError
from ..runs.files import write_tensors
from ..runs.tensors import read_tensors
from .maximization import TrainingRecord


def write_checkpoint(path: Path, done: int, state: dict[str, torch.Tensor], record: TrainingRecord) -> None:
    tensors = {name: t.detach().cpu().contiguous() for name, t in state.items()}
    notes = {"done": done, "seconds": record.seconds, "losses": record.losses, "rollbacks": record.rollbacks}
    write_tensors(path, tensors, notes)


def read_checkpoint(path: Path) -> tuple[int, dict[str, torch.Tensor], TrainingRecord] | None:
    if not path.is_file():
        return None
    try:
        tensors, description = read_tensors(path, "a checkpoint of a training")
    except InputError:  # the training begins again: nothing but time is lost
        return None
    losses = [(int(step), float(loss)) for step, loss in description["losses"]]
    record = TrainingRecord(description["done"], description["seconds"], losses, description["rollbacks"])
    return description["done"], tensors, record


def recent_loss(record: TrainingRecord, share: float = 0.1) -> float:
    """The loss over the last part of a training."""
    count = max(1, math.ceil(len(record.losses) * share))
    recent = [loss for _, loss in record.losses[-count:]]
    return sum(recent) / len(recent)
