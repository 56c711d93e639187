"""The M-step of a lap: the denoiser is trained on the draws and saved; an interrupted training is resumed."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from ..files.origin import Origin
from ..priors import DiffusionPrior, Prior
from ..priors.files import load_with_description, save_prior
from ..runs.draws import DrawStore, lap_draws
from ..runs.lap_arrays import write_losses
from .checkpoint import read_checkpoint, recent_loss, write_checkpoint
from .conditioning import Conditioning
from .context import RunContext
from .examples import draw_repeats
from .maximization import MeasuredWith, maximization
from .measured_loss import usable_share
from .start import denoiser_to_train, is_conditional
from .totals import write_elapsed
from .training_blocks import SavedTraining, TrainingRecord
from .unfinished import CHECKPOINT, earlier_piece, trainer_state


def maximise(
    context: RunContext, lap: int, before: Prior, store: DrawStore, metrics: dict[str, Any], began: float
) -> DiffusionPrior:
    """Train the prior of a lap and save it; if it is saved already, load it.

    Args:
        before: The prior of the previous lap. Its network is trained in place.
        metrics: The metrics of the lap, which are added to.
        began: The time at which the lap began.
    """
    file, origin = context.run.prior_file(lap), context.run.origin("prior", lap)
    if context.processes.broadcast(file.is_file()):  # the run was interrupted between training and evaluation
        prior, description = load_with_description(file, origin)
        metrics |= description["training"]
        assert isinstance(prior, DiffusionPrior)
        return prior.to(context.device)
    training = _Training(context, lap, before, began)
    context.unknowns.update(training.prior, before, context.start, store)
    record = training.run(store)
    results = training.results(record)
    if context.processes.is_first:
        write_losses(context.run, lap, record.losses)
        save_prior(training.prior, file, origin, lap=context.laps_before + lap, training=results)
        training.checkpoint_file.unlink(missing_ok=True)
        _optimizer_file(context, lap - 1).unlink(missing_ok=True)
    metrics |= results
    context.on_event("maximization", {"lap": lap, **results})
    return training.prior


class _Training:
    """The training of one lap.

    Attributes:
        began: The time at which the lap began.
        prior: The prior that is trained.
        continues: Whether its network is that of the previous lap, so that the optimizer can continue.
        notes: What the user should know about this training.
        steps: The number of optimizer steps.
        weight: The weight of the loss on measured values.
        checkpoint_file: The checkpoint of an interrupted training.
    """

    def __init__(self, context: RunContext, lap: int, before: Prior, began: float) -> None:
        self.context, self.lap, self.began = context, lap, began
        self.options, network = context.recipe.at(lap).train, context.recipe.network_from(lap)
        conditional = is_conditional(before, context.recipe, lap)
        self.conditioning: Conditioning | None = context.conditioning if conditional else None
        family = None if self.conditioning is None else self.conditioning.family
        self.prior = denoiser_to_train(before, context.start, context.recipe, family, network)
        self.continues = isinstance(before, DiffusionPrior) and self.prior.network is before.network
        if not self.continues:
            context.batches.compiled_batch = None  # it was chosen for the previous network
        self.notes: list[str] = []
        first = lap == 1 <= context.recipe.laps and not isinstance(before, DiffusionPrior)
        self.steps = self.options.steps_in(first)
        self.weight, _ = usable_share(self.options.measured_at(lap), context.obs.train)
        self.checkpoint_file = context.run.lap(lap) / CHECKPOINT
        self.piece = earlier_piece(context.recipe, lap)

    def run(self, store: DrawStore) -> TrainingRecord:
        """Train on the draws in `store`."""
        context, options = self.context, self.options.model_copy(update={"measured": self.weight})
        draws, origin = lap_draws(store, context.device), context.run.origin("training", self.lap)
        measured_with: MeasuredWith | None = None
        if self.weight:
            train = context.obs.train
            measured_with = (train.operators(), store.owners(len(draws) // len(train)), train.noises())

        def checkpoint(done: int, state: dict[str, torch.Tensor], record: TrainingRecord) -> None:
            if context.processes.is_first:
                write_checkpoint(self.checkpoint_file, done, state, record, origin)
                write_elapsed(context.run, self.lap, time.monotonic() - self.began)

        return maximization(
            self.prior,
            draws,
            options,
            steps=self.steps,
            seed=context.recipe.seed,
            lap=context.laps_before + self.lap,
            measured_with=measured_with,
            repeats=draw_repeats(context.obs.train, store, len(draws)),
            precision=context.recipe.precision,
            resume=self._resume(origin),
            checkpoint=checkpoint,
            save_state=self._save_optimizer,
            progress=context.progress,
            processes=context.processes,
            interruption=context.interruption,
            conditioning=self.conditioning,
        )

    def _resume(self, origin: Origin | None) -> SavedTraining | None:
        """Return where the training begins: at its checkpoint, after a piece, or with the optimizer of the last lap."""
        previous = self._optimizer_state()
        if (saved := read_checkpoint(self.checkpoint_file, origin)) is not None:
            saved[2].first_step = 0 if self.piece is None else self.piece.steps
            return saved
        if self.piece is not None:
            return self.piece.steps, trainer_state(self.piece, self.prior), self.piece.record()
        return None if previous is None else (0, previous, TrainingRecord())

    def _optimizer_state(self) -> dict[str, torch.Tensor] | None:
        """Read the optimizer state of the previous lap; None if the optimizer is new."""
        context, before = self.context, self.lap - 1
        if self.options.restart or not self.continues or before == 0:
            return None
        saved = read_checkpoint(_optimizer_file(context, before), context.run.origin("optimizer", before))
        if saved is None:
            self.notes.append(
                f"the optimizer state of lap {before} is missing or damaged, so this lap was trained with a new "
                "optimizer, and its result differs from that of an undisturbed run"
            )
        return None if saved is None else saved[1]

    def _save_optimizer(self, state: dict[str, torch.Tensor]) -> None:
        """Save the optimizer state, if the next lap continues with it (`train.restart: false`)."""
        context, following = self.context, self.lap + 1
        needed = not context.recipe.at(following).train.restart and not context.run.done(following)
        if context.processes.is_first and needed:
            record, origin = TrainingRecord(self.steps), context.run.origin("optimizer", self.lap)
            write_checkpoint(_optimizer_file(context, self.lap), self.steps, state, record, origin)

    def results(self, record: TrainingRecord) -> dict[str, Any]:
        """Return the metrics of the training."""
        results: dict[str, Any] = {"m_seconds": record.seconds, "loss": recent_loss(record), "steps": record.steps}
        results |= {"rollbacks": record.rollbacks, "measured": self.weight}
        if self.notes:
            results["notes"] = self.notes
        if self.conditioning is not None:
            results["conditioned"] = self.options.conditioned_share
        return results


def _optimizer_file(context: RunContext, lap: int) -> Path:
    """Return the file of the optimizer state at the end of a lap (`train.restart: false`)."""
    return context.run.lap(lap) / "optimizer.safetensors"
