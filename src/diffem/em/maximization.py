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
from ..priors import DiffusionPrior
from ..progress import Progress
from ..randomness import Stream
from ..samplers.capture import capture
from .augment import Augment

if TYPE_CHECKING:
    from ..runs.recipe import Train

BLOCK_BYTES = 1 << 25  # random numbers made at a time


@dataclass
class TrainingRecord:
    """What a training did."""

    steps: int = 0
    seconds: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)  # (step, mean loss since the entry before)

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
    """Which draws, noise levels and noise every training step uses: a function of the step alone."""

    def __init__(self, draws: Tensor, batch: int, prior: DiffusionPrior, augment: Augment, stream: Stream) -> None:
        self.draws, self.batch, self.augment, self.stream = draws, batch, augment, stream
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
        uniforms = self.stream.uniform(position, (5 + self.augment.uniforms,), step=1, dtype=self.draws.dtype)
        t = uniforms[:, :5].median(1).values
        log_sigma = self.log_min + (self.log_max - self.log_min) * t
        z = self.stream.normal(position, shape, step=2, dtype=self.draws.dtype)

        def split(v: Tensor) -> Tensor:
            return v.reshape(count, self.batch, *v.shape[1:])

        return split(self.rows(position)), split(log_sigma), split(z), split(uniforms[:, 5:])


class Trainer:
    """Network, optimizer and averaged weights, and one step of them."""

    def __init__(self, prior: DiffusionPrior, options: Train, steps: int, precision: str = "float32") -> None:
        self.network: nn.Module = prior.network
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

    def step(self, i: Tensor | int, x: Tensor, log_sigma: Tensor, z: Tensor) -> Tensor:
        """One optimizer step; returns the loss, `()`. Nothing is read back from the device."""
        with fast_products(self.fast):
            return self._step(i, x, log_sigma, z)

    def _step(self, i: Tensor | int, x: Tensor, log_sigma: Tensor, z: Tensor) -> Tensor:
        if isinstance(self.rate, Tensor):
            self.rate.copy_(self.rates[i].reshape(()))
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = float(self.rates[i])
        sigma = log_sigma.exp().reshape(-1, *(1,) * (x.ndim - 1))
        scale = torch.rsqrt(sigma**2 + 1)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            h = self.network(scale * (x + sigma * z), log_sigma)
        loss = (h.float() - scale * (sigma * x - z)).square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, self.options.clip, foreach=True)
        self.optimizer.step()
        if self.average:
            assert self.options.ema is not None
            torch._foreach_lerp_(self.average, [p.detach() for p in self.parameters], 1 - self.options.ema)
        return loss.detach()

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


def maximization(
    prior: DiffusionPrior,
    draws: Tensor,
    options: Train,
    *,
    steps: int,
    seed: int,
    lap: int,
    precision: str = "float32",
    resume: tuple[int, dict[str, Tensor], TrainingRecord] | None = None,
    checkpoint: Checkpoint | None = None,
    progress: bool | None = None,
) -> TrainingRecord:
    """Train `prior.network` in place on draws `(n, *event)`; it is left in evaluation mode with its averaged weights.

    resume: (steps done, trainer state, record) of an interrupted training; checkpoint: called now and then with the same.
    """
    if draws.ndim < 2 or tuple(draws.shape[1:]) != prior.event_shape:
        raise InputError(f"draws of shape {tuple(draws.shape)} do not fit a prior over {prior.event_shape}")
    stream = Stream(seed, "training", lap)
    prior.requires_grad_(True).train()
    trainer = Trainer(prior, options, steps, precision)
    batches = Batches(draws, options.batch, prior, Augment(options.augment, prior.event_shape), stream)
    done, record = 0, TrainingRecord()
    if resume is not None:
        done, state, record = resume
        trainer.restore(state)
    per_step = options.batch * (math.prod(prior.event_shape) + 8) * 4
    block = max(1, min(256, BLOCK_BYTES // per_step))
    runner = _runner(trainer, batches, stream, block)
    saved = started = time.monotonic()
    before = record.seconds
    devices = [prior.mean.device] if prior.mean.device.type == "cuda" else []
    # dropout draws from torch's own generator, seeded per block; it is left as it was found
    with torch.random.fork_rng(devices), Progress(f"lap {lap} M", steps * options.batch, "examples", progress) as bar:
        bar.done = done * options.batch
        while done < steps:
            # blocks lie at fixed places, wherever a training was interrupted
            count = min(block - done % block, steps - done)
            losses = runner(done, count)
            done += count
            loss = float(losses.mean())
            record.steps, record.seconds = done, before + time.monotonic() - started
            record.losses.append((done, loss))
            if not math.isfinite(loss):
                raise FloatingPointError(
                    f"the loss of lap {lap} became {loss} near step {done}; lower train.lr or train.clip and resume"
                )
            bar.advance(count * options.batch, loss=f"{loss:.4f}")
            if checkpoint is not None and done < steps and time.monotonic() - saved > options.checkpoint_seconds:
                checkpoint(done, trainer.state(), record)
                saved = time.monotonic()
    trainer.finish()
    prior.eval().requires_grad_(False)
    return record


def _runner(trainer: Trainer, batches: Batches, stream: Stream, block: int) -> Callable[[int, int], Tensor]:
    """A function (first step, count) → losses `(count,)`; on a GPU the step is captured once and replayed."""
    dropout = Stream(stream.seed, "dropout", stream.lap)

    def eager(start: int, count: int) -> Tensor:
        torch.manual_seed(dropout.integer(start))
        rows, log_sigma, z, u = batches.block(start, count)
        losses = []
        for i in range(count):
            x = batches.augment(batches.draws[rows[i]], u[i])
            losses.append(trainer.step(start + i, x, log_sigma[i], z[i]))
        return torch.stack(losses)

    if trainer.device.type != "cuda":
        return eager

    buffers = [torch.empty_like(b) for b in batches.block(0, block)]
    losses = torch.zeros(block, device=trainer.device)
    here, overall = (torch.zeros(1, dtype=torch.int64, device=trainer.device) for _ in range(2))

    def one_step() -> None:
        rows, log_sigma, z, u = (b.index_select(0, here)[0] for b in buffers)
        x = batches.augment(batches.draws[rows], u)
        losses.index_copy_(0, here, trainer.step(overall, x, log_sigma, z).reshape(1))
        here.add_(1)
        overall.add_(1)

    def fill(start: int, count: int) -> None:
        for buffer, fresh in zip(buffers, batches.block(start, count), strict=True):
            buffer[:count].copy_(fresh)
        here.zero_()
        overall.fill_(start)

    # Warming up and capturing take real steps; what they did is undone afterwards.
    initial = {name: t.clone() for name, t in trainer.state().items()}
    fill(0, block)
    graph = capture(one_step, warmup=3)
    for name, t in trainer.state().items():
        if name in initial:
            t.copy_(initial[name])
        else:
            t.zero_()

    def replayed(start: int, count: int) -> Tensor:
        torch.manual_seed(dropout.integer(start))
        fill(start, count)
        for _ in range(count):
            graph.replay()
        return losses[:count]

    return replayed
