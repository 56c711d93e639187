"""The steps of a training in blocks: checkpoints, snapshots to return to after a divergence, out-of-memory errors."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.cuda_graphs import capture
from ..core.interruption import Preempted, ProcessLost
from ..core.progress import Progress
from ..core.randomness import Stream
from ..files.memory import is_out_of_memory
from .examples import Examples
from .trainer import Trainer

ROLLBACKS = 5  # largest number of resets of one training
SNAPSHOT_STEPS = 256  # steps between two snapshots on a GPU; on a CPU there is one per block


@dataclass
class TrainingRecord:
    """The course of a training.

    Attributes:
        steps: Optimizer steps.
        seconds: Their time.
        losses: Pairs of a step and the mean loss since the previous entry.
        rollbacks: How often the training diverged and was reset.
        first_step: The step at which the optimizer is new, if another run took the steps before (`unfinished.py`).
    """

    steps: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)
    rollbacks: int = 0
    first_step: int = 0


SavedTraining = tuple[int, dict[str, Tensor], TrainingRecord]  # steps done, trainer state, record
Checkpoint = Callable[[int, dict[str, Tensor], TrainingRecord], None]  # called with the parts of a `SavedTraining`


class BlockTraining:
    """A training that runs in blocks of steps.

    Args:
        stream: The random numbers of the training.
        block: The number of steps per block.
        done: The steps that are done; it is an attribute, too.
        record: The record of these steps; it is an attribute, too.
        checkpoint: Saves the training; None saves nothing.
    """

    def __init__(
        self,
        trainer: Trainer,
        examples: Examples,
        stream: Stream,
        block: int,
        done: int,
        record: TrainingRecord,
        checkpoint: Checkpoint | None,
    ) -> None:
        self.trainer, self.examples, self.stream, self.block = trainer, examples, stream, block
        self.done, self.record, self.checkpoint = done, record, checkpoint
        self.steps, self.batch, self.processes = len(trainer.rates), trainer.options.batch, trainer.processes
        self.examples.attempt = record.rollbacks
        self._runner: Callable[[int, int], Tensor] | None = None
        self._snapshot = (done, copy_state(trainer.state()))
        self._snapshot_steps = SNAPSHOT_STEPS if trainer.device.type == "cuda" else 1
        self._began = self._saved = time.monotonic()
        self._seconds_before = record.seconds

    def run(self, bar: Progress) -> None:
        """Take all steps.

        Raises:
            Preempted: If a request to stop came; the training is saved.
            FloatingPointError: If the training diverges again and again.
        """
        bar.done = self.done * self.batch
        while self.done < self.steps:
            # the positions of blocks do not depend on where a training was interrupted
            count = min(self.block - self.done % self.block, self.steps - self.done)
            loss = self._run_block(count)
            if loss is None:
                continue
            self.done += count
            self.record.steps = self.done
            self.record.seconds = self._seconds_before + time.monotonic() - self._began
            steps_since = self.done - self._snapshot[0]
            if not math.isfinite(loss) or (steps_since >= self._snapshot_steps and not self.trainer.is_finite()):
                self._roll_back(loss)
                continue
            self.record.losses.append((self.done, loss))
            bar.advance(count * self.batch, loss=f"{loss:.4f}")
            if steps_since >= self._snapshot_steps:
                self._snapshot = (self.done, copy_state(self.trainer.state()))
            self._save()

    def _run_block(self, count: int) -> float | None:
        """Take the steps of a block and return their mean loss; None if the block must be repeated with less memory."""
        try:
            # the runner is made here because capturing takes steps, and their memory
            self._runner = self._runner or block_runner(self.trainer, self.examples, self.stream, self.block)
            losses = self._runner(self.done, count)
            if len(losses) < count:
                raise self._preempted()
            return float(losses.mean())
        except RuntimeError as error:
            can_retry = is_out_of_memory(error) and self.processes.count == 1 and self.trainer.make_room(self.batch)
            if not can_retry:
                raise
            self._restore()
            self._runner = None
            return None
        except (Preempted, ProcessLost, KeyboardInterrupt):
            self._restore()
            if self.checkpoint is not None and self.done:
                self.checkpoint(self.done, self.trainer.state(), self.record)
            raise

    def _preempted(self) -> Preempted:
        return Preempted(f"lap {self.stream.lap}: {self.done} of {count_of(self.steps, 'training step')} done")

    def _restore(self) -> None:
        """Return to the last snapshot."""
        self.done, state = self._snapshot
        self.trainer.reset(state)
        self.record.losses = [entry for entry in self.record.losses if entry[0] <= self.done]

    def _roll_back(self, loss: float) -> None:
        """Return to the last snapshot after a divergence; continue with half the learning rate and other noise.

        The same noise could give the same NaN at any learning rate.
        """
        self.record.rollbacks += 1
        if self.record.rollbacks > ROLLBACKS:
            raise FloatingPointError(
                f"the loss of lap {self.stream.lap} became {loss} near step {self.done}, {self.record.rollbacks} "
                "times despite smaller learning rates and new noise; lower train.lr in a new run, which can begin "
                "with the last finished lap of this one (key: start)"
            )
        self.trainer.rates *= 0.5
        self.examples.attempt = self.record.rollbacks
        self._restore()

    def _save(self) -> None:
        """Write a checkpoint if it is due, and stop if that was requested in any process."""
        stop = self.processes.any(self.trainer.interruption.should_stop)
        due = time.monotonic() - self._saved > self.trainer.options.checkpoint_seconds
        unfinished = self.done < self.steps
        if self.checkpoint is not None and unfinished and (stop or due) and self.trainer.is_finite():
            self.checkpoint(self.done, self.trainer.state(), self.record)
            self._saved = time.monotonic()
        if stop and unfinished:
            raise self._preempted()


def copy_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a copy of a trainer's state."""
    return {name: t.detach().clone() for name, t in state.items()}


def block_runner(trainer: Trainer, examples: Examples, stream: Stream, block: int) -> Callable[[int, int], Tensor]:
    """Return a function (first step, count) → losses `(count,)`. On a GPU the step is captured once and replayed.

    After a request to stop within a block, the function returns fewer losses.
    """
    processes = trainer.processes
    dropout = Stream(stream.seed, f"dropout {processes.rank}" if processes.rank else "dropout", stream.lap)

    def eager(start: int, count: int) -> Tensor:
        torch.manual_seed(dropout.integer(start))
        rows, log_sigma, z, u, others, position, *read = examples.block(start, count)
        losses = []
        for i in range(count):
            x = examples.samples(rows[i], u[i], [draws[i] for draws in read])
            source = rows[i], u[i], others[i], position[i]
            losses.append(trainer.step(start + i, x, log_sigma[i], z[i], *source))
            if trainer.stop:
                break
        return torch.stack(losses)

    resident = all(part is None or part.resident for part in (trainer.measured, trainer.conditioning))
    if trainer.device.type != "cuda" or processes.count > 1 or not resident:
        return eager

    buffers = [torch.empty_like(b) for b in examples.block(0, block)]
    losses = torch.zeros(block, device=trainer.device)
    block_step, total_step = (torch.zeros(1, dtype=torch.int64, device=trainer.device) for _ in range(2))

    def one_step() -> None:
        rows, log_sigma, z, u, *source = (b.index_select(0, block_step)[0] for b in buffers)
        others, position, *read = source
        x = examples.samples(rows, u, read)
        losses.index_copy_(
            0, block_step, trainer.step(total_step, x, log_sigma, z, rows, u, others, position).reshape(1)
        )
        block_step.add_(1).remainder_(block)  # a block may have fewer steps than the warm-up
        total_step.add_(1).remainder_(len(trainer.rates))

    def fill(start: int, count: int) -> None:
        for buffer, fresh in zip(buffers, examples.block(start, count), strict=True):
            buffer[:count].copy_(fresh)
        block_step.zero_()
        total_step.fill_(start)

    # warming up and capturing take real steps, which are undone afterwards
    initial = copy_state(trainer.state())
    fill(0, block)
    graph = capture(one_step, warmup=3)
    trainer.reset(initial)

    def replayed(start: int, count: int) -> Tensor:
        torch.manual_seed(dropout.integer(start))
        fill(start, count)
        for _ in range(count):
            graph.replay()
        return losses[:count]

    return replayed
