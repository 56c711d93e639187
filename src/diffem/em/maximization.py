r"""M: train the denoiser on the draws of this lap by denoising score matching.

With x_t = x + σz, loss weight λ = 1/σ² + 1 and the preconditioning of `priors/diffusion.py`, the weighted error of the denoiser is

    λ ‖d(x_t, σ) − x‖² = ‖h(x_t/√(σ²+1), log σ) − (σx − z)/√(σ²+1)‖²,

which is what is computed: no large weights, no cancellation at small σ. σ is log-linear in t ~ Beta(3, 3), the median of five
uniform numbers. Every random number is addressed by the position of its training example, so a resumed training continues
exactly where it was.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..fusion import fast_products
from ..interruption import Interruption, Preempted
from ..operators import Operator
from ..priors import DiffusionPrior
from ..processes import ALONE, Processes
from ..progress import Progress
from ..randomness import Stream
from ..samplers.capture import capture
from .augment import Augment
from .batching import is_out_of_memory
from .measured_loss import MeasuredLoss, mean_gain

if TYPE_CHECKING:
    from ..runs.recipe import Train

BLOCK_BYTES = 1 << 25  # random numbers made at a time


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


def learning_rates(options: Train, steps: int) -> Tensor:
    """The rate of every step, `(steps,)`."""
    progress = torch.arange(steps, dtype=torch.float64) / max(1, steps)
    shape = {
        "constant": torch.ones_like(progress),
        "linear": 1 - progress,
        "cosine": 0.5 * (1 + torch.cos(math.pi * progress)),
    }[options.schedule]
    rates = options.final_lr + (options.lr - options.final_lr) * shape
    if options.warmup:
        rates = rates * ((torch.arange(steps) + 1) / options.warmup).clamp(max=1)
    return rates


class Batches:
    """Which draws, noise levels and noise every training step uses: a function of the step alone.

    Of several processes each takes its part of every batch, `[first, last)`.
    """

    def __init__(
        self,
        draws: Tensor,
        batch: int,
        prior: DiffusionPrior,
        augment: Augment,
        stream: Stream,
        processes: Processes = ALONE,
    ) -> None:
        self.draws, self.batch, self.augment, self.stream = draws, batch, augment, stream
        self.first, self.last = (batch * r // processes.count for r in (processes.rank, processes.rank + 1))
        self.log_min, self.log_max = math.log(prior.sigma_min), math.log(prior.sigma_max)
        self._orders: dict[int, Tensor] = {}

    def rows(self, position: Tensor) -> Tensor:
        """The draw at each position of an endless walk through reshuffled epochs: none is ever left out."""
        n = len(self.draws)
        epoch = position // n
        first, last = int(position[0]) // n, int(position[-1]) // n
        self._orders = {
            e: self._orders[e] if e in self._orders else self.stream.permutation(n, e, self.draws.device)
            for e in range(first, last + 1)
        }
        orders = torch.stack([self._orders[e] for e in range(first, last + 1)])
        return orders[epoch - first, position % n]

    def block(self, start: int, count: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Steps start … start+count−1: rows `(count, B)`, log σ `(count, B)`, z `(count, B, *event)`, augmentation uniforms."""
        device, shape = self.draws.device, tuple(self.draws.shape[1:])
        position = torch.arange(start * self.batch, (start + count) * self.batch, device=device)
        mine = self.last - self.first
        position = position.reshape(count, self.batch)[:, self.first : self.last].flatten()
        uniforms = self.stream.uniform(position, (5 + self.augment.uniforms,), step=1, dtype=self.draws.dtype)
        t = uniforms[:, :5].median(1).values
        log_sigma = self.log_min + (self.log_max - self.log_min) * t
        z = self.stream.normal(position, shape, step=2, dtype=self.draws.dtype)

        def split(v: Tensor) -> Tensor:
            return v.reshape(count, mine, *v.shape[1:])

        return split(self.rows(position)), split(log_sigma), split(z), split(uniforms[:, 5:])


class Trainer:
    """Network, optimizer and averaged weights, and one step of them."""

    def __init__(
        self,
        prior: DiffusionPrior,
        options: Train,
        steps: int,
        precision: str = "float32",
        processes: Processes = ALONE,
        measured: MeasuredLoss | None = None,
    ) -> None:
        self.network: nn.Module = prior.network
        self.measured = measured
        self.processes = processes
        self._tried_again = False
        self.parts = 1  # pieces a batch is worked through in, when it does not fit the device at once
        self.options, self.device = options, prior.mean.device
        self.parameters = [p for p in self.network.parameters() if p.requires_grad]
        self.rates = learning_rates(options, steps).to(device=self.device, dtype=torch.float32)
        self.rate = torch.zeros((), device=self.device) if self.device.type == "cuda" else options.lr
        self.optimizer = torch.optim.Adam(
            self.parameters,
            lr=self.rate,
            betas=options.betas,
            weight_decay=options.weight_decay,
            fused=self.device.type in ("cpu", "cuda"),
            capturable=self.device.type == "cuda",
        )
        self.average = [p.detach().clone() for p in self.parameters] if options.ema is not None else []
        self.autocast, self.fast = precision == "bf16", precision != "float32"

    def step(self, i: Tensor | int, x: Tensor, log_sigma: Tensor, z: Tensor, *source: Tensor) -> Tensor:
        """One optimizer step; returns the loss, `()`. Nothing is read back from the device.

        source: which draws x are, `(n,)`, and the uniform numbers they were augmented with; a loss on measured values needs them.
        """
        with fast_products(self.fast):
            return self._step(i, x, log_sigma, z, *source)

    def _step(self, i: Tensor | int, *examples: Tensor) -> Tensor:
        if isinstance(self.rate, Tensor):
            self.rate.copy_(self.rates[i].reshape(()))
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = float(self.rates[i])
        self.optimizer.zero_grad(set_to_none=True)
        x = examples[0]
        loss = x.new_zeros(())
        share = 1 / (self.options.batch * x[0].numel())
        for piece in zip(*(t.tensor_split(self.parts) for t in examples), strict=True):
            part = self._loss(*piece) * share
            part.backward()
            loss = loss + part.detach()
        if self.processes.count > 1:
            loss = self._sum_gradients(loss)
        nn.utils.clip_grad_norm_(self.parameters, self.options.clip, foreach=True)
        self.optimizer.step()
        if self.average:
            assert self.options.ema is not None
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - self.options.ema)
        return loss

    def _loss(self, x: Tensor, log_sigma: Tensor, z: Tensor, *source: Tensor) -> Tensor:
        """The squared error of some examples, summed."""
        sigma = log_sigma.exp().reshape(-1, *(1,) * (x.ndim - 1))
        scale = torch.rsqrt(sigma**2 + 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            h = self.network(scale * (x + sigma * z), log_sigma)
        error = h.to(x.dtype) - scale * (sigma * x - z)
        return error.square().sum() if self.measured is None else self.measured(error, *source)

    def _sum_gradients(self, loss: Tensor) -> Tensor:
        """Gradients and loss over all processes, in one message."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        message = torch.cat([loss.reshape(1), *(g.flatten() for g in gradients)])
        self.processes.add_(message)
        total, *sums = message.split([1, *(g.numel() for g in gradients)])
        for gradient, summed in zip(gradients, sums, strict=True):
            gradient.copy_(summed.reshape(gradient.shape))
        return total[0]

    def is_finite(self) -> bool:
        """Whether every weight is a number."""
        return bool(torch.isfinite(torch.stack(torch._foreach_norm([p.detach() for p in self.parameters]))).all())

    def state(self) -> dict[str, Tensor]:
        """Everything a resumed training needs, as tensors."""
        tensors: dict[str, Tensor] = {}
        for k, p in enumerate(self.parameters):
            tensors[f"weight.{k}"] = p.detach()
            if self.average:
                tensors[f"average.{k}"] = self.average[k]
            for name, value in self.optimizer.state[p].items():
                tensors[f"adam.{k}.{name}"] = value
        return tensors

    @torch.no_grad()
    def reset(self, state: dict[str, Tensor]) -> None:
        """Back to an earlier state, in place: a captured step keeps its tensors. What was not there yet becomes 0."""
        for name, t in self.state().items():
            if name in state:
                t.copy_(state[name])
            else:
                t.zero_()

    def make_room(self, batch: int) -> bool:
        """After running out of memory: free what is cached, then work through batches in more pieces; False if that is no use."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if not self._tried_again:  # perhaps something else took the memory for a moment
            self._tried_again = True
            return True
        self.parts *= 2
        return self.parts <= batch

    @torch.no_grad()
    def restore(self, tensors: dict[str, Tensor]) -> None:
        for k, p in enumerate(self.parameters):
            p.copy_(tensors[f"weight.{k}"])
            if self.average:
                self.average[k].copy_(tensors[f"average.{k}"])
            prefix = f"adam.{k}."
            entries = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
            # Adam keeps its step counter where it was made: on the CPU unless captured
            self.optimizer.state[p] = {
                n: t.clone() if n == "step" and self.device.type == "cpu" else t.to(self.device)
                for n, t in entries.items()
            }

    @torch.no_grad()
    def finish(self) -> None:
        """The averaged weights become the network's, for sampling and as the next lap's start."""
        for p, average in zip(self.parameters, self.average, strict=False):
            p.copy_(average)


Checkpoint = Callable[[int, dict[str, Tensor], TrainingRecord], None]
ROLLBACKS = 5  # of one training, before it is given up
SNAPSHOT_STEPS = 256  # a training that goes astray is taken back at most so far, and a block more


def maximization(
    prior: DiffusionPrior,
    draws: Tensor,
    options: Train,
    *,
    steps: int,
    seed: int,
    lap: int,
    measured_with: tuple[Operator, Tensor] | None = None,
    precision: str = "float32",
    resume: tuple[int, dict[str, Tensor], TrainingRecord] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: bool | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
) -> TrainingRecord:
    """Train `prior.network` in place on draws `(n, *event)`; it is left in evaluation mode with its averaged weights.

    measured_with: the operators of all observations, and the observation of every draw, `(n,)`; `options.measured` needs them.
    resume: (steps done, trainer state, record) of an interrupted training; checkpoint: called now and then with the same.
    A loss or weights that are no numbers take the training back to where it was well, to go on with half the step size; a batch that
    does not fit the device is worked through in pieces. When `interruption` asks, the training is saved and `Preempted` raised.
    """
    if draws.ndim < 2 or tuple(draws.shape[1:]) != prior.event_shape:
        raise InputError(f"draws of shape {tuple(draws.shape)} do not fit a prior over {prior.event_shape}")
    stream = Stream(seed, "training", lap)
    prior.requires_grad_(True).train()
    augment = Augment(options.augment, prior.event_shape)
    measured = _measured_loss(draws, options, augment, seed, measured_with)
    trainer = Trainer(prior, options, steps, precision, processes, measured)
    batches = Batches(draws, options.batch, prior, augment, stream, processes)
    done, record = 0, TrainingRecord()
    if resume is not None:
        done, state, record = resume
        trainer.restore(state)
        trainer.rates *= 0.5**record.rollbacks
    per_step = options.batch * (math.prod(prior.event_shape) + 8) * 4
    block = max(1, min(256, BLOCK_BYTES // per_step))
    runner: Callable[[int, int], Tensor] | None = None
    saved = started = time.monotonic()
    before = record.seconds
    good = (done, _copy(trainer.state()))
    devices = [prior.mean.device] if prior.mean.device.type == "cuda" else []
    # dropout draws from torch's own generator, seeded per block; it is left as it was found
    with torch.random.fork_rng(devices), Progress(f"lap {lap} M", steps * options.batch, "examples", progress) as bar:
        bar.done = done * options.batch
        while done < steps:
            # blocks lie at fixed places, wherever a training was interrupted
            count = min(block - done % block, steps - done)
            try:
                runner = runner or _runner(trainer, batches, stream, block)  # capturing takes steps, and their memory
                losses = runner(done, count)
                loss = float(losses.mean())
            except RuntimeError as error:
                if not is_out_of_memory(error) or processes.count > 1 or not trainer.make_room(options.batch):
                    raise
                done = _back(trainer, good, record)
                runner = None
                continue
            done += count
            record.steps, record.seconds = done, before + time.monotonic() - started
            if not math.isfinite(loss) or (done - good[0] >= SNAPSHOT_STEPS and not trainer.is_finite()):
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
            if done - good[0] >= SNAPSHOT_STEPS:
                good = (done, _copy(trainer.state()))
            stop = interruption is not None and processes.any(interruption.asked)
            due = time.monotonic() - saved > options.checkpoint_seconds
            if checkpoint is not None and done < steps and (stop or due) and trainer.is_finite():
                checkpoint(done, trainer.state(), record)
                saved = time.monotonic()
            if stop and done < steps:
                raise Preempted(f"lap {lap}: {done} of {steps} training steps are done")
    trainer.finish()
    prior.eval().requires_grad_(False)
    return record


def _measured_loss(
    draws: Tensor, options: Train, augment: Augment, seed: int, measured_with: tuple[Operator, Tensor] | None
) -> MeasuredLoss | None:
    if not options.measured:
        return None
    if measured_with is None:
        raise InputError(f"train.measured is {options.measured}: say with which operators the draws were measured")
    A, owners = measured_with[0].to(draws.device), measured_with[1].to(draws.device)
    gain = mean_gain(A, int(owners.max()) + 1, tuple(draws.shape[1:]), draws, seed)
    return MeasuredLoss(A, owners, options.measured, augment, gain)


def _copy(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: t.detach().clone() for name, t in state.items()}


def _back(trainer: Trainer, good: tuple[int, dict[str, Tensor]], record: TrainingRecord) -> int:
    """Put the trainer back to where it was well; returns the step."""
    done, state = good
    trainer.reset(state)
    record.losses = [entry for entry in record.losses if entry[0] <= done]
    return done


def _runner(trainer: Trainer, batches: Batches, stream: Stream, block: int) -> Callable[[int, int], Tensor]:
    """A function (first step, count) → losses `(count,)`; on a GPU the step is captured once and replayed."""
    processes = trainer.processes
    dropout = Stream(stream.seed, f"dropout {processes.rank}" if processes.rank else "dropout", stream.lap)

    def eager(start: int, count: int) -> Tensor:
        torch.manual_seed(dropout.integer(start))
        rows, log_sigma, z, u = batches.block(start, count)
        losses = []
        for i in range(count):
            x = batches.augment(batches.draws[rows[i]], u[i])
            losses.append(trainer.step(start + i, x, log_sigma[i], z[i], rows[i], u[i]))
        return torch.stack(losses)

    if trainer.device.type != "cuda" or processes.count > 1:
        return eager

    buffers = [torch.empty_like(b) for b in batches.block(0, block)]
    losses = torch.zeros(block, device=trainer.device)
    here, overall = (torch.zeros(1, dtype=torch.int64, device=trainer.device) for _ in range(2))

    def one_step() -> None:
        rows, log_sigma, z, u = (b.index_select(0, here)[0] for b in buffers)
        x = batches.augment(batches.draws[rows], u)
        losses.index_copy_(0, here, trainer.step(overall, x, log_sigma, z, rows, u).reshape(1))
        here.add_(1).remainder_(block)  # warming up takes more steps than a block of very large batches has
        overall.add_(1).remainder_(len(trainer.rates))

    def fill(start: int, count: int) -> None:
        for buffer, fresh in zip(buffers, batches.block(start, count), strict=True):
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
