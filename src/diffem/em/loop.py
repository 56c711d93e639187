r"""The whole loop: observations in, prior out, lap after lap, restartable at any instant.

    lap 0      the start: a Gaussian fitted to the observations, or a prior that is given
    lap k      E  draw x ~ q_{k−1}(x | y, A) for every observation      → laps/k/draws
                  (clean observations are their own draws)
               M  train the denoiser on the draws, warm-started           → laps/k/prior.safetensors
               watch                                                      → laps/k/metrics.json

Every random number is addressed by (seed, lap, purpose, index), every file is whole or absent, and each step reads only files: calling
`diffem.fit` again on the same folder goes on where the files end, and ends with the same bits as if nothing had happened.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..core.errors import InputError
from ..core.interruption import Interruption, Preempted, polled
from ..core.processes import Processes
from ..core.progress import Progress
from ..observations import Observations
from ..observations.lazy import stored
from ..priors import DiffusionPrior, Prior
from ..priors.files import load_prior, load_with_description, save_prior
from ..runs.draws import DrawStore
from ..runs.lap_draws import lap_draws
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..runs.shown import read_losses, write_losses, write_shown
from .batches import MicroBatches
from .checkpoint import read_checkpoint, recent_loss, write_checkpoint
from .conditioning import Instruments
from .denoising import denoising_measures
from .diagnosis import notes as lap_notes
from .diagnosis import warnings
from .expectation import Shard, draw_shard, fresh_count, given_shard
from .maximization import TrainingRecord, maximization
from .measured_loss import usable_share
from .model_check import check_model
from .screening import largest_plausible
from .shard_report import summary
from .shown import restore_pictures
from .start import denoiser_to_train, gaussian_start, given_start, is_other_network, set_noise_range
from .totals import read_elapsed, totals, write_elapsed
from .validation import notes
from .watch import PICTURED, split, watch

CAPTURED_NUMBERS = 1 << 20  # a step over fewer numbers than this is shorter on a GPU than its launches: it is captured

Say = Callable[[str, dict[str, Any]], None]  # event name, its data; the command line prints them


class Loop:
    """One run of a recipe on one folder, on this process and with the others of its kind."""

    def __init__(
        self,
        run: RunDir,
        recipe: Recipe,
        obs: Observations,
        device: torch.device,
        progress: bool | None,
        say: Say | None,
        processes: Processes,
        interruption: Interruption | None,
        notes: Sequence[str] = (),
    ) -> None:
        self.given_notes = notes  # of the caller's, for lap 0
        self.run, self.recipe, self.device, self.processes = run, recipe, device, processes
        self.interruption = interruption or Interruption()
        # one process speaks for all
        self.say: Say = say if say is not None and processes.is_first else (lambda event, data: None)
        self.progress = progress if processes.is_first else False
        self.index, held = split(len(obs), recipe.watch.held_out)
        self.train_obs = stored(obs)[self.index]
        self.batches = MicroBatches(recipe, len(self.train_obs), device, self.say)
        self.batch = 0  # draws made at a time in the last E
        self.shown = (obs[held] if len(held) else obs[: min(256, len(obs))]).to(device)
        self.held_out = self.shown.informative() if len(held) else None
        self.held_index = held[~self.shown.empty().cpu()] if len(held) else held
        self.prior: Prior | None = None  # of the last lap, while it is in memory
        self._instruments: Instruments | None = None
        self.laps_before = 0  # laps behind the prior this run started from: they have used their random numbers

    def run_all(self, start: Prior | None) -> None:
        missing = self.processes.share([k for k in range(self.recipe.last_lap + 1) if not self.run.done(k)])
        done = missing[0] - 1 if missing else self.recipe.last_lap
        self.say(
            "start",
            {
                "laps": self.recipe.laps,
                "final": self.recipe.final is not None,
                "done": done,
                "observations": len(self.train_obs),
                "held_out": self.recipe.watch.held_out,
                "device": str(self.device),
                "processes": self.processes.count,
            },
        )
        if self.processes.is_first:
            with self.interruptible("samples and draws for the report are made again"):
                self.restore_pictures()
        if not missing:
            self.set_status("finished")
            return
        self.set_status("running")
        if done < 0:
            self.lap_zero(start)
        else:
            self.laps_before = self.run.metrics()[0].get("laps_before", 0)
        seconds = 0.0  # that the last lap of this call took
        for lap in (k for k in missing if k > 0):  # a lap before finished ones is missing if its files were damaged
            if lap - 1 not in missing:
                self.prior = None
            # without a limit the processes do not wait for each other here
            left, final = self.interruption.seconds_left(), lap > self.recipe.laps
            if left < math.inf and not final and self.processes.share(seconds > left):
                raise Preempted(f"lap {lap} would end later")
            began = time.monotonic()
            self.lap(lap)
            seconds = time.monotonic() - began
        self.set_status("finished")

    def set_status(self, status: str) -> None:
        if self.processes.is_first:
            self.run.set_status(status)

    @contextmanager
    def interruptible(self, doing: str, limited: bool = True) -> Iterator[None]:
        """Work that a request to stop ends at its next step, in this process or another: what is not on disk is made again.

        Args:
            doing: What the message of `Preempted` names.
            limited: Whether the time limit of the run ends it too.
        """

        def check() -> None:
            self.processes.check()
            if self.interruption.asked if limited else self.interruption.requested:
                raise Preempted(doing)

        with polled(check):
            check()
            yield

    # lap 0 ---------------------------------------------------------------------------------------------------------------

    def lap_zero(self, start: Prior | None) -> None:
        """The first process makes the start; the others wait for it."""
        began = time.monotonic()
        metrics: dict[str, Any] = {
            "lap": 0,
            "observations": len(self.train_obs),
            "notes": [*self.given_notes, *notes(self.recipe, self.train_obs)],
        }
        with self.interruptible("lap 0: making the start"):
            prior = self.make_start(start, metrics) if self.processes.is_first else None
            self.laps_before = self.processes.share(self.laps_before)
        if prior is not None:
            self.finish(0, prior, metrics, began)
            self.start_file.unlink(missing_ok=True)

    @property
    def start_file(self) -> Path:
        """The state of an unfinished Gaussian start."""
        return self.run.file(0, "start.safetensors")

    def make_start(self, start: Prior | None, metrics: dict[str, Any]) -> Prior:
        began, given = time.monotonic(), start is not None or self.recipe.start != "gaussian"
        self.say("starting", {"start": "given" if given else "gaussian"})
        if given:
            prior, cost = given_start(self.recipe.start if start is None else start)
            self.laps_before = cost.laps
            set_noise_range(prior, self.recipe, self.train_obs)
            if prior.event_shape != self.train_obs.x_shape:
                raise InputError(
                    f"the start is a prior over {prior.event_shape}, the observations are of {self.train_obs.x_shape}"
                )
            metrics |= {"start": "given", **cost.before()}
        else:
            state = (self.start_file, self.run.origin("start", 0))
            prior, notes = gaussian_start(self.recipe, self.train_obs, self.device, self.progress, *state)
            metrics |= notes
        save_prior(prior, self.run.prior_file(0), self.run.origin("prior", 0), lap=self.laps_before)
        metrics["start_seconds"] = time.monotonic() - began
        self.say("started", metrics)
        return self.saved_prior(0, self.device)  # as a resumed run reads it: products round by the layout in memory

    # lap k ---------------------------------------------------------------------------------------------------------------

    def lap(self, lap: int) -> None:
        began = time.monotonic() - read_elapsed(self.run, lap)
        before = self.prior if self.prior is not None else self.saved_prior(lap - 1, self.device)
        metrics: dict[str, Any] = {"lap": lap}
        try:
            with self.interruptible(f"lap {lap}: drawing"):
                store = self.expect(lap, before, metrics)
                unseen = self.unseen_draws(lap, before)  # M trains the network of the prior before in place
            prior = self.maximise(lap, before, store, metrics)
            self.finish(lap, prior, metrics, began, unseen)
        except Preempted:
            if self.processes.is_first:
                write_elapsed(self.run, lap, time.monotonic() - began)
            raise

    def saved_prior(self, lap: int, device: torch.device | str = "cpu") -> Prior:
        return load_prior(self.run.prior_file(lap), device, self.run.origin("prior", lap))

    def bound(self) -> float:
        return largest_plausible(self.saved_prior(0), self.recipe.e_step.bound)

    def store(self, lap: int) -> DrawStore:
        return DrawStore.of_lap(self.run, lap, len(self.train_obs), self.recipe.e_step.shard)

    def instruments(self, scale: float) -> Instruments | None:
        """The operators that examples are shown with, where the network is conditional."""
        if self.recipe.conditional and self._instruments is None:
            self._instruments = Instruments(self.train_obs, scale, self.device)
        return self._instruments

    def expect(self, lap: int, prior: Prior, metrics: dict[str, Any]) -> DrawStore:
        began, options = time.monotonic(), self.recipe.at(lap).e_step
        store, bound = self.store(lap), self.bound()
        total = fresh_count(len(self.train_obs), options.fresh_at(lap)) * options.draws // self.processes.count
        with Progress(f"lap {lap} E", total, "draws", self.progress) as bar:
            for k in self.processes.share_out(len(store)):
                if store.has(k):
                    first, end = store.range(k)
                    bar.total -= fresh_count(end - first, options.fresh_at(lap)) * options.draws
                    continue
                shard = self.draw(lap, prior, store, k, bound, bar)
                store.write(k, shard.x, shard.report)
        metrics["e_seconds"] = time.monotonic() - began
        self.processes.meet()  # all shards are written
        metrics["e_batch"] = self.batch
        metrics |= {**summary(list(store.reports())), "bound": bound}
        self.say("expectation", {"lap": lap, **metrics})
        return store

    def draw(
        self,
        lap: int,
        prior: Prior,
        store: DrawStore,
        k: int,
        bound: float,
        bar: Progress,
    ) -> Shard:
        """Shard k."""
        options = self.recipe.at(lap).e_step
        first, end = store.range(k)
        if options.clean:
            bar.advance(end - first)
            return given_shard(self.train_obs[first:end])

        def shard(batch: int) -> Shard:
            self.batch = batch
            return draw_shard(
                prior,
                self.train_obs[first:end].to(self.device),
                options,
                index=self.index[first:end],
                seed=self.recipe.seed,
                lap=self.laps_before + lap,
                bound=bound,
                previous=(lambda: self.earlier_draws(lap - 1, k, bound)) if lap > 1 else None,
                fresh=options.fresh_at(lap),
                batch_size=batch,
                captured=self.device.type == "cuda" and batch * math.prod(prior.event_shape) < CAPTURED_NUMBERS,
                progress=bar,
            )

        return self.batches.within_memory(prior, lap, shard)

    def unseen_draws(self, lap: int, prior: Prior) -> torch.Tensor | None:
        """One draw for every held-out observation as E makes them, `(n, *event)`, to compare the training's draws with."""
        if self.held_out is None or not self.processes.is_first:
            return None
        obs, options = self.held_out, self.recipe.at(lap).e_step.independent()
        if options.clean:
            return obs.y
        draw = partial(draw_shard, prior, obs, options, index=self.held_index, seed=self.recipe.seed)
        draw = partial(draw, lap=self.laps_before + lap, bound=self.bound())
        return self.batches.within_memory(prior, lap, lambda batch: draw(batch_size=batch)).x[0]

    def earlier_draws(self, lap: int, k: int, bound: float) -> torch.Tensor:
        """The draws of shard k of an earlier lap, made again if they are damaged or were removed."""
        store = self.store(lap)
        try:
            return store.read(k)
        except InputError:
            if store.has(k):
                raise
        first, end = store.range(k)
        prior = self.saved_prior(lap - 1, self.device)
        with Progress(
            f"lap {lap} E, shard {k} again", (end - first) * self.recipe.at(lap).e_step.draws, "draws", self.progress
        ) as bar:
            shard = self.draw(lap, prior, store, k, bound, bar)
        store.write(k, shard.x, shard.report)
        return store.read(k)

    def maximise(self, lap: int, before: Prior, store: DrawStore, metrics: dict[str, Any]) -> DiffusionPrior:
        file, state_file = self.run.prior_file(lap), self.run.lap(lap) / "training.safetensors"
        origin, state_origin = (self.run.origin(kind, lap) for kind in ("prior", "training"))
        if self.processes.share(file.is_file()):  # trained, and interrupted before the lap was finished
            prior, description = load_with_description(file, origin)
            metrics |= description["training"]
            assert isinstance(prior, DiffusionPrior)
            return prior.to(self.device)
        start = self.saved_prior(0, self.device)
        options, wanted = self.recipe.at(lap).train, self.recipe.network_from(lap)
        renewed = is_other_network(before, wanted)
        if renewed:
            self.batches.compiled = None  # that was the batch of the network before
        # a new network that is never shown an operator is an ordinary one
        instruments = None if renewed and not options.conditioned_share else self.instruments(start.scale)
        family = None if instruments is None else instruments.family
        prior = denoiser_to_train(before, start, self.recipe, family, wanted)
        first = lap == 1 <= self.recipe.laps and not isinstance(before, DiffusionPrior)
        steps = options.steps_in(first)
        draws = lap_draws(store, self.device)
        share, _ = usable_share(options.measured_at(lap), self.train_obs)

        def checkpoint(done: int, state: dict[str, torch.Tensor], record: TrainingRecord) -> None:
            if self.processes.is_first:
                write_checkpoint(state_file, done, state, record, state_origin)

        def keep(state: dict[str, torch.Tensor]) -> None:
            if self.processes.is_first and not self.recipe.at(lap + 1).train.restart:
                record = TrainingRecord(steps)
                write_checkpoint(self.optimizer_file(lap), steps, state, record, self.run.origin("optimizer", lap))

        record = maximization(
            prior,
            draws,
            options,
            steps=steps,
            seed=self.recipe.seed,
            lap=self.laps_before + lap,
            measured=share,
            measured_with=(
                self.train_obs.operators(),
                store.owners(len(draws) // len(self.train_obs)),
                self.train_obs.noises(),
            )
            if share
            else None,
            precision=self.recipe.precision,
            resume=read_checkpoint(state_file, state_origin),
            checkpoint=checkpoint,
            progress=self.progress,
            processes=self.processes,
            interruption=self.interruption,
            instruments=instruments,
            begin=None if options.restart or renewed else self.optimizer_state(lap - 1),
            keep=None if options.restart else keep,
        )
        training = {"m_seconds": record.seconds, "loss": recent_loss(record), "steps": record.steps}
        training |= {"rollbacks": record.rollbacks, "measured": share}
        if instruments is not None:
            training["conditioned"] = options.conditioned_share
        if self.processes.is_first:
            write_losses(self.run, lap, record.losses)
            save_prior(prior, file, origin, lap=self.laps_before + lap, training=training)
            state_file.unlink(missing_ok=True)
            self.optimizer_file(lap - 1).unlink(missing_ok=True)
        metrics |= training
        self.say("maximization", {"lap": lap, **training})
        return prior

    def optimizer_file(self, lap: int) -> Path:
        """The trainer's state at the end of a lap, for an optimizer that lives on (`train.restart: false`)."""
        return self.run.lap(lap) / "optimizer.safetensors"

    def optimizer_state(self, lap: int) -> dict[str, torch.Tensor] | None:
        """That state; None where there is none, as in the first lap or a run whose weights alone were brought along."""
        kept = read_checkpoint(self.optimizer_file(lap), self.run.origin("optimizer", lap))
        return None if kept is None else kept[1]

    def finish(
        self, lap: int, prior: Prior, metrics: dict[str, Any], began: float, unseen: torch.Tensor | None = None
    ) -> None:
        """Watch, and write what makes the lap count; the other processes of a run already draw for the next.

        A time limit does not end it: measuring is short, and the weights of a lap can be taken elsewhere once the lap counts.
        """
        self.prior = prior
        with self.interruptible(f"lap {lap}: measuring", limited=False):
            if self.processes.is_first:
                self.conclude(lap, prior, metrics, began, unseen)
            if lap == self.recipe.last_lap:
                self.processes.meet()

    def check(self, prior: Prior, metrics: dict[str, Any]) -> list[str]:
        """Warnings about the model y = Ax + e that was stated, from the start; what else was found goes to the metrics."""
        checked = check_model(prior, self.train_obs, self.held_out, self.recipe, self.device)
        metrics |= checked.metrics
        metrics["notes"] = [*metrics.get("notes", []), *checked.notes]
        return checked.warnings

    def conclude(
        self, lap: int, prior: Prior, metrics: dict[str, Any], began: float, unseen: torch.Tensor | None
    ) -> None:
        trained = time.monotonic()
        watched = self.batches.within_memory(
            prior, lap, lambda batch: watch(prior, self.held_out, self.shown, self.recipe.at(lap + 1), batch)
        )
        metrics |= watched.metrics
        if isinstance(prior, DiffusionPrior) and lap:
            losses, noise = read_losses(self.run, [lap])[1], self.recipe.at(lap).train.noise
            measure = partial(denoising_measures, prior, self.store(lap), unseen, noise, losses)
            metrics |= self.batches.within_memory(prior, lap, measure)
        shown = {"samples.npy": watched.samples, "posterior.npy": watched.posterior}
        metrics["files"] = write_shown(self.run, lap, {name: x.cpu().numpy() for name, x in shown.items()})
        checked = [] if lap else self.check(prior, metrics)
        metrics["warnings"] = checked or warnings([*self.run.metrics(), metrics], self.recipe)
        metrics["notes"] = [*metrics.get("notes", []), *lap_notes(metrics, self.recipe)]
        now = time.monotonic()
        metrics |= {"watch_seconds": now - trained, "seconds": now - began}
        cost = totals([*(self.run.lap_metrics(k) for k in range(lap)), metrics], self.recipe)
        metrics |= {"minutes": cost.minutes, "images": cost.images}
        self.run.finish_lap(lap, metrics)
        self.run.file(lap, "elapsed.json").unlink(missing_ok=True)
        keep = self.recipe.e_step.keep
        if keep is not None:
            newest = max(k for k in range(self.recipe.last_lap + 1) if self.run.done(k))
            for old in range(1, newest - keep + 1):
                shutil.rmtree(self.run.lap(old) / "draws", ignore_errors=True)
        self.say("lap", metrics)

    def restore_pictures(self) -> None:
        """Make the samples and draws of finished laps again that are missing or damaged."""

        def load(lap: int) -> tuple[Prior, int]:
            prior = self.saved_prior(lap, self.device)
            return prior, self.batches.prepare(prior)

        for lap in (k for k in range(self.recipe.last_lap + 1) if self.run.done(k)):
            restore_pictures(
                self.run, lap, self.recipe, partial(load, lap), self.shown[: min(PICTURED, len(self.shown))]
            )
