"""The M-step: train the denoiser on the draws of a lap."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.interruption import Interruption
from ..core.processes import ALONE, Processes
from ..core.progress import Progress
from ..core.randomness import Stream
from ..linalg import Covariance
from ..observations.lazy import LazyNoise, LazyOperators
from ..operators import Operator
from ..priors import DiffusionPrior
from ..runs.draws import StoredDraws
from ..runs.recipe import Train
from ..runs.schedule import largest
from .augment import Augment
from .conditioning import Conditioning
from .determined import determined
from .examples import Examples
from .measured_loss import MeasuredLoss, mean_gain
from .noise_law import noise_law
from .trainer import Trainer
from .training_blocks import BlockTraining, Checkpoint, SavedTraining, TrainingRecord

BLOCK_BYTES = 1 << 25  # bytes of random numbers per block of steps
GPU_BLOCK_BYTES = 1 << 27  # a GPU waits for the host once per block

# the operators of all observations, the observation of every draw `(n,)`, and the noise
MeasuredWith = tuple[Operator | LazyOperators, Tensor, Covariance | LazyNoise]


def maximization(
    prior: DiffusionPrior,
    draws: Tensor | StoredDraws,
    options: Train,
    *,
    steps: int,
    seed: int,
    lap: int,
    measured_with: MeasuredWith | None = None,
    repeats: Tensor | None = None,
    precision: str = "float32",
    resume: SavedTraining | None = None,
    checkpoint: Checkpoint | None = None,
    save_state: Callable[[dict[str, Tensor]], None] | None = None,
    progress: bool | None = None,
    processes: Processes = ALONE,
    interruption: Interruption | None = None,
    conditioning: Conditioning | None = None,
) -> TrainingRecord:
    """Train `prior.network` in place. It ends in evaluation mode with its averaged weights.

    If the loss or the weights become NaN, the training returns to its last snapshot and continues with half the step
    size. A batch that exceeds the memory of the device is processed in pieces. After a request to stop, on a CPU within
    one step, the training is saved and `Preempted` is raised; the steps of an unfinished block are repeated later.

    Args:
        prior: The prior.
        draws: (n, *event). The draws of the lap.
        options: The M-step options of the recipe.
        steps: The number of optimizer steps.
        seed: The seed of the run.
        lap: The lap in the addresses of the random numbers.
        measured_with: Operators, owners of the draws and noise; needed if `options.measured` is above 0.
        repeats: (n,). How often an epoch uses each draw. Default: once.
        precision: The precision of the network on a GPU.
        resume: The steps done, the trainer state and the record of an interrupted training; 0 steps and the state at
            the end of the previous lap, if its optimizer continues.
        checkpoint: Called from time to time with such a triple.
        save_state: Called with the trainer state after the last step.
        progress: Whether to show a progress bar; see `diffem.fit`.
        processes: This process among those that train together.
        interruption: A request to stop.
        conditioning: The operators, or the simulated measurements, for a conditional network. A fraction
            `options.conditioned` of the examples receive one.
    """
    if draws.ndim < 2 or tuple(draws.shape[1:]) != prior.event_shape:
        raise InputError(f"draws of shape {tuple(draws.shape)} do not fit a prior over {prior.event_shape}")
    stream = Stream(seed, "training", lap)
    prior.requires_grad_(True).train()
    augment = Augment(options.augment, prior.event_shape)
    loss = _measured_loss(draws, largest(options.measured), augment, seed, measured_with, prior.scale)
    done, state, record = resume or (0, None, TrainingRecord())
    first = record.first_step
    trainer = Trainer(prior, options, steps, precision, processes, loss, interruption, conditioning, lap, first)
    law = noise_law(options.noise, prior.trained_min / prior.scale, prior.sigma_max / prior.scale)
    conditional = (0.0, 0) if conditioning is None else (options.conditioned_share, len(conditioning))
    examples = Examples(draws, options.batch, law, augment, stream, processes, *conditional, repeats)
    if state is not None:
        trainer.restore(state)
        trainer.rates *= 0.5**record.rollbacks
    block = _block_steps(options.batch, prior, draws)
    training = BlockTraining(trainer, examples, stream, block, done, record, checkpoint)
    devices = [prior.mean.device] if prior.mean.device.type == "cuda" else []
    # dropout uses torch's global generator, which is seeded per block; its state is restored afterwards
    with torch.random.fork_rng(devices), Progress(f"lap {lap} M", steps * options.batch, "examples", progress) as bar:
        training.run(bar)
    if save_state is not None:
        save_state(trainer.state())
    trainer.finish()
    prior.eval().requires_grad_(False)
    return record


def _block_steps(batch: int, prior: DiffusionPrior, draws: Tensor | StoredDraws) -> int:
    """Return the number of steps per block."""
    per_step = batch * (math.prod(prior.event_shape) + 8) * 4
    block_bytes = GPU_BLOCK_BYTES if draws.device.type == "cuda" else BLOCK_BYTES
    return max(1, min(256, block_bytes // per_step))


def _measured_loss(
    draws: Tensor | StoredDraws,
    weight: float,
    augment: Augment,
    seed: int,
    measured_with: MeasuredWith | None,
    scale: float,
) -> MeasuredLoss | None:
    if not weight:
        return None
    if measured_with is None:
        raise InputError(f"train.measured is {weight}: the operators of the draws are needed (measured_with)")
    A, owners = measured_with[0].to(draws.device), measured_with[1].to(draws.device)
    noise, count, event_shape = measured_with[2].to(draws.device), int(owners.max()) + 1, tuple(draws.shape[1:])
    D = determined(A, noise, count, event_shape, scale)
    return MeasuredLoss(D, owners, weight, augment, mean_gain(D, count, event_shape, draws, seed))
