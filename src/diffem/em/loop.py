r"""The EM loop: observations in, prior out, lap by lap. A run can be stopped at any time and resumed.

    lap 0      the Gaussian start, or a given prior                       → laps/0/prior.safetensors
    lap k      E-step: draw x ~ q_{k−1}(x | y, A) for every observation   → laps/k/draws
                  (clean observations are their own draws)
               M-step: train the denoiser on the draws, warm-started      → laps/k/prior.safetensors
               held-out evaluation                                        → laps/k/metrics.json

Every random number is addressed by (seed, lap, purpose, index), files are written atomically, and each step reads its
input from files only. Calling `diffem.fit` again on the same folder therefore resumes after the last file, and the
result is bit-identical to that of an uninterrupted run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Any

import torch

from ..core.interruption import Preempted
from ..priors import Prior
from .context import RunContext
from .e_step import expect, unseen_draws
from .lap_end import conclude, restore_all_pictures
from .lap_start import make_start, start_file
from .m_step import maximise
from .totals import read_elapsed, write_elapsed
from .unfinished import earlier_piece
from .validation import notes


class Loop:
    """The laps of a run.

    Args:
        context: The run.
        given_notes: Notes of the caller about the observations, for lap 0.

    Attributes:
        prior: The prior of the last lap if it is in memory; otherwise None.
    """

    def __init__(self, context: RunContext, given_notes: Sequence[str] = ()) -> None:
        self.context, self.given_notes = context, given_notes
        self.prior: Prior | None = None

    def run_all(self, start: Prior | None) -> None:
        """Run all laps that are not finished; start: a prior passed from Python."""
        context, recipe, run, processes = self.context, self.context.recipe, self.context.run, self.context.processes
        missing = processes.broadcast([k for k in range(recipe.last_lap + 1) if not run.done(k)])
        done = missing[0] - 1 if missing else recipe.last_lap
        self._announce(done)
        if processes.is_first and len(missing) <= recipe.last_lap:  # a lap is finished
            with context.interruptible("recomputing samples and draws for the report"):
                restore_all_pictures(context)
        if not missing:
            self._set_status("finished")
            return
        self._set_status("running")
        if done < 0:
            self.lap_zero(start)
        else:
            context.laps_before = run.metrics()[0].get("laps_before", 0)
        seconds = 0.0  # duration of the previous lap of this call
        for lap in (k for k in missing if k > 0):  # a lap before a finished one is missing if its files were damaged
            if lap - 1 not in missing:
                self.prior = None
            self._require_time(lap, seconds)
            began = time.monotonic()
            self.lap(lap)
            seconds = time.monotonic() - began
        self._set_status("finished")

    def _announce(self, done: int) -> None:
        context = self.context
        context.on_event(
            "start",
            {
                "laps": context.recipe.laps,
                "final": context.recipe.final is not None,
                "done": done,
                "observations": len(context.obs.train),
                "held_out": context.recipe.watch.held_out,
                "device": str(context.device),
                "processes": context.processes.count,
            },
        )

    def _require_time(self, lap: int, seconds: float) -> None:
        """Stop the run before a lap that would exceed its time limit; seconds: the duration of the previous lap."""
        left, final = self.context.interruption.seconds_left(), lap > self.context.recipe.laps
        # without a time limit the processes need not wait for each other here
        if left < math.inf and not final and self.context.processes.broadcast(seconds > left):
            raise Preempted(f"lap {lap} would end after the time limit")

    def _set_status(self, status: str) -> None:
        if self.context.processes.is_first:
            self.context.run.set_status(status)

    def lap_zero(self, start: Prior | None) -> None:
        """Run lap 0. The first process fits or loads the prior to start from; the others wait for it."""
        context, began = self.context, time.monotonic()
        metrics: dict[str, Any] = {
            "lap": 0,
            "observations": len(context.obs.train),
            "notes": [*self.given_notes, *notes(context.recipe, context.obs.train)],
        }
        with context.interruptible("lap 0: starting prior"):
            prior = make_start(context, start, metrics) if context.processes.is_first else None
            context.laps_before = context.processes.broadcast(context.laps_before)
        if prior is not None:
            self._finish(0, prior, metrics, began)
            start_file(context).unlink(missing_ok=True)

    def lap(self, lap: int) -> None:
        """Run lap 1 or a later one: E-step, M-step, evaluation."""
        context = self.context
        piece = earlier_piece(context.recipe, lap)
        earlier = read_elapsed(context.run, lap) or (0.0 if piece is None else piece.lap_seconds)
        began = time.monotonic() - earlier
        before = self.prior if self.prior is not None else context.saved_prior(lap - 1, context.device)
        context.use_estimates(before)
        metrics: dict[str, Any] = {"lap": lap}
        try:
            with context.interruptible(f"lap {lap}: E-step"):
                store = expect(context, lap, before, metrics)
                unseen = unseen_draws(context, lap, before)  # before the M-step, which trains this network in place
            prior = maximise(context, lap, before, store, metrics, began)
            context.use_estimates(prior)
            self._finish(lap, prior, metrics, began, unseen)
        except Preempted:
            if context.processes.is_first:
                write_elapsed(context.run, lap, time.monotonic() - began)
            raise

    def _finish(
        self, lap: int, prior: Prior, metrics: dict[str, Any], began: float, unseen: torch.Tensor | None = None
    ) -> None:
        """Evaluate and complete a lap in the first process; the others begin the next E-step.

        The time limit of the run does not apply: the evaluation is short, and a completed lap can be used elsewhere.
        """
        self.prior, context = prior, self.context
        with context.interruptible(f"lap {lap}: held-out evaluation", limited=False):
            if context.processes.is_first:
                conclude(context, lap, prior, metrics, began, unseen)
            if lap == context.recipe.last_lap:
                context.processes.barrier()
