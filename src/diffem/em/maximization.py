"""M: train the denoiser on the draws of this lap; saved now and then, taken back where it goes astray, in pieces where memory is short."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..core.cuda_graphs import capture
from ..core.errors import InputError
from ..core.interruption import Interruption, Lost, Preempted
from ..core.processes import ALONE, Processes
from ..core.progress import Progress
from ..core.randomness import Stream
from ..files.memory import is_out_of_memory
from ..linalg import Covariance
from ..observations.lazy import StoredNoise, StoredOperators
from ..operators import Operator
from ..priors import DiffusionPrior
from ..runs.lap_draws import StoredDraws
from ..runs.recipe import Train
from ..runs.schedule import largest
from .augment import Augment
from .conditioning import Instruments
from .determined import determined
from .examples import Examples
from .measured_loss import MeasuredLoss, mean_gain
from .noise_law import noise_law
from .trainer import Trainer

BLOCK_BYTES = 1 << 25  # random numbers made at a time
GPU_BLOCK_BYTES = 1 << 27  # a GPU waits for the host once per block


@dataclass
class TrainingRecord:
    """What a training did."""

    steps: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)  # (step, mean loss since the entry before)
    rollbacks: int = 0  # times the training went astray and was taken back

    @property
    def last_loss(self) -> float:
        return self.losses[-1][1] if self.losses else math.nan


MeasuredWith = tuple[Operator | StoredOperators, Tensor, Covariance | StoredNoise]
Checkpoint = Callable[[int, dict[str, Tensor], TrainingRecord], None]
ROLLBACKS = 5  # of one training, before it is given up
SNAPSHOT_STEPS = 256  # on a GPU, a training that goes astray is taken back at most so far, and a block more


def maximization(
    prior: DiffusionPrior,
    draws: Tensor | StoredDraws,
    options: Train,
    *,
    steps: int,
    seed: int,
    lap: int,
    measured: float | None = None,
    measured_with: MeasuredWith | None = None,
    precision: str = "float32",
    resume: tuple[int, dict[str, Tensor], TrainingRecord] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: bool | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
    instruments: Instruments | None = None,
    begin: dict[str, Tensor] | None = None,
    keep: Callable[[dict[str, Tensor]], None] | None = None,
) -> TrainingRecord:
    """Train `prior.network` in place on draws `(n, *event)`; it is left in evaluation mode with its averaged weights.

    measured: the share of the loss on measured values, `options.measured` when absent. measured_with: the operators of all
        observations, the observation of every draw, `(n,)`, and the noise; a share above 0 needs them.
    instruments: the operators that a share `options.conditioned` of the examples is shown with; a conditional network needs them.
    resume: (steps done, trainer state, record) of an interrupted training; checkpoint: called now and then with the same.
    begin: the trainer's state at the end of the last lap, for an optimizer that lives on; keep: called with the one at the end of this.
    A loss or weights that are no numbers take the training back to where it was well, to go on with half the step size; a batch that
    does not fit the device is worked through in pieces. When `interruption` asks, the training is saved and `Preempted` raised, on a CPU
    within a step: the steps of an unfinished block are taken again.
    """
    if draws.ndim < 2 or tuple(draws.shape[1:]) != prior.event_shape:
        raise InputError(f"draws of shape {tuple(draws.shape)} do not fit a prior over {prior.event_shape}")
    stream = Stream(seed, "training", lap)
    prior.requires_grad_(True).train()
    augment = Augment(options.augment, prior.event_shape)
    share = largest(options.measured) if measured is None else measured
    measured_loss = _measured_loss(draws, share, augment, seed, measured_with, prior.scale)
    interruption = interruption or Interruption()
    trainer = Trainer(
        prior, options, steps, precision, processes, measured_loss, lambda: interruption.asked, instruments
    )
    law = noise_law(options.noise, prior.trained_min / prior.scale, prior.sigma_max / prior.scale)
    shown = (0.0, 0) if instruments is None else (options.conditioned_share, len(instruments))
    examples = Examples(draws, options.batch, law, augment, stream, processes, *shown)
    done, record = 0, TrainingRecord()
    if begin is not None:
        trainer.restore(begin)
    if resume is not None:
        done, state, record = resume
        trainer.restore(state)
        trainer.rates *= 0.5**record.rollbacks
    per_step = options.batch * (math.prod(prior.event_shape) + 8) * 4
    block_bytes = GPU_BLOCK_BYTES if draws.device.type == "cuda" else BLOCK_BYTES
    block = max(1, min(256, block_bytes // per_step))
    runner: Callable[[int, int], Tensor] | None = None
    saved = started = time.monotonic()
    before = record.seconds
    good = (done, _copy(trainer.state()))
    devices = [prior.mean.device] if prior.mean.device.type == "cuda" else []
    snapshot_steps = SNAPSHOT_STEPS if devices else 1
    # dropout draws from torch's own generator, seeded per block; it is left as it was found
    with torch.random.fork_rng(devices), Progress(f"lap {lap} M", steps * options.batch, "examples", progress) as bar:
        bar.done = done * options.batch
        while done < steps:
            # blocks lie at fixed places, wherever a training was interrupted
            count = min(block - done % block, steps - done)
            try:
                runner = runner or _runner(trainer, examples, stream, block)  # capturing takes steps, and their memory
                losses = runner(done, count)
                if len(losses) < count:
                    raise Preempted(f"lap {lap}: {done} of {steps} training steps are done")
                loss = float(losses.mean())
            except RuntimeError as error:
                if not is_out_of_memory(error) or processes.count > 1 or not trainer.make_room(options.batch):
                    raise
                done = _back(trainer, good, record)
                runner = None
                continue
            except (Preempted, Lost, KeyboardInterrupt):
                done = _back(trainer, good, record)
                if checkpoint is not None and done:
                    checkpoint(done, trainer.state(), record)
                raise
            done += count
            record.steps, record.seconds = done, before + time.monotonic() - started
            if not math.isfinite(loss) or (done - good[0] >= snapshot_steps and not trainer.is_finite()):
                record.rollbacks += 1
                if record.rollbacks > ROLLBACKS:
                    raise FloatingPointError(
                        f"the loss of lap {lap} became {loss} near step {done}, {record.rollbacks} times in spite of halving the "
                        "step size; lower train.lr or train.clip and resume"
                    )
                trainer.rates *= 0.5
                done = _back(trainer, good, record)
                continue
            record.losses.append((done, loss))
            bar.advance(count * options.batch, loss=f"{loss:.4f}")
            if done - good[0] >= snapshot_steps:
                good = (done, _copy(trainer.state()))
            stop = processes.any(interruption.asked)
            due = time.monotonic() - saved > options.checkpoint_seconds
            if checkpoint is not None and done < steps and (stop or due) and trainer.is_finite():
                checkpoint(done, trainer.state(), record)
                saved = time.monotonic()
            if stop and done < steps:
                raise Preempted(f"lap {lap}: {done} of {steps} training steps are done")
    if keep is not None:
        keep(trainer.state())
    trainer.finish()
    prior.eval().requires_grad_(False)
    return record


def _measured_loss(
    draws: Tensor | StoredDraws,
    share: float,
    augment: Augment,
    seed: int,
    measured_with: MeasuredWith | None,
    scale: float,
) -> MeasuredLoss | None:
    if not share:
        return None
    if measured_with is None:
        raise InputError(f"train.measured is {share}: say with which operators the draws were measured")
    A, owners = measured_with[0].to(draws.device), measured_with[1].to(draws.device)
    noise, count, event_shape = measured_with[2].to(draws.device), int(owners.max()) + 1, tuple(draws.shape[1:])
    D = determined(A, noise, count, event_shape, scale)
    return MeasuredLoss(D, owners, share, augment, mean_gain(D, count, event_shape, draws, seed))


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in state.items()}


def _back(trainer: Trainer, good: tuple[int, dict[str, Tensor]], record: TrainingRecord) -> int:
    """Put the trainer back to where it was well; returns the step."""
    done, state = good
    trainer.reset(state)
    record.losses = [entry for entry in record.losses if entry[0] <= done]
    return done


def _runner(trainer: Trainer, examples: Examples, stream: Stream, block: int) -> Callable[[int, int], Tensor]:
    """A function (first step, count) → losses `(count,)`; on a GPU the step is captured once and replayed.

    Asked to stop within a block, it returns fewer losses.
    """
    processes = trainer.processes
    dropout = Stream(stream.seed, f"dropout {processes.rank}" if processes.rank else "dropout", stream.lap)

    def eager(start: int, count: int) -> Tensor:
        torch.manual_seed(dropout.integer(start))
        rows, log_sigma, z, u, others, *read = examples.block(start, count)
        losses = []
        for i in range(count):
            x = examples.samples(rows[i], u[i], [draws[i] for draws in read])
            losses.append(trainer.step(start + i, x, log_sigma[i], z[i], rows[i], u[i], others[i]))
            if trainer.stop:
                break
        return torch.stack(losses)

    resident = all(part is None or part.resident for part in (trainer.measured, trainer.instruments))
    if trainer.device.type != "cuda" or processes.count > 1 or not resident:
        return eager

    buffers = [torch.empty_like(b) for b in examples.block(0, block)]
    losses = torch.zeros(block, device=trainer.device)
    here, overall = (torch.zeros(1, dtype=torch.int64, device=trainer.device) for _ in range(2))

    def one_step() -> None:
        rows, log_sigma, z, u, others, *read = (b.index_select(0, here)[0] for b in buffers)
        x = examples.samples(rows, u, read)
        losses.index_copy_(0, here, trainer.step(overall, x, log_sigma, z, rows, u, others).reshape(1))
        here.add_(1).remainder_(block)  # warming up takes more steps than a block of very large batches has
        overall.add_(1).remainder_(len(trainer.rates))

    def fill(start: int, count: int) -> None:
        for buffer, fresh in zip(buffers, examples.block(start, count), strict=True):
            buffer[:count].copy_(fresh)
        here.zero_()
        overall.fill_(start)

    # Warming up and capturing take real steps; what they did is undone afterwards.
    initial = _copy(trainer.state())
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
