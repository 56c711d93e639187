"""The state that all parts of a run share: recipe, folder, observations, device, processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch

from ..core.interruption import Interruption, Preempted, polled
from ..core.processes import Processes
from ..observations import Observations
from ..observations.features import is_simulated
from ..priors import Prior
from ..priors.files import load_prior
from ..runs.draws import DrawStore
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from .batches import MicroBatches
from .conditioning import Conditioning, Simulations, TrainingOperators
from .screening import largest_plausible
from .split import SplitObservations
from .unknowns import unknowns_of

EventListener = Callable[[str, dict[str, Any]], None]  # called with the name and the data of each event


class RunContext:
    """A run in progress, as one process sees it.

    Args:
        run: The run folder.
        recipe: The resolved recipe.
        obs: All observations, in float32.
        device: The device of this process.
        progress: Whether to show progress bars; see `diffem.fit`.
        on_event: Receives events; only the first process sends them.
        processes: This process among the others of the run.
        interruption: A request to stop.

    Attributes:
        laps_before: Laps of the run that this run started from; their random numbers are used up.
    """

    def __init__(
        self,
        run: RunDir,
        recipe: Recipe,
        obs: Observations,
        device: torch.device,
        progress: bool | None,
        on_event: EventListener | None,
        processes: Processes,
        interruption: Interruption | None,
    ) -> None:
        self.run, self.recipe, self.device, self.processes = run, recipe, device, processes
        self.interruption = interruption or Interruption()
        self.on_event: EventListener = (
            on_event if on_event is not None and processes.is_first else (lambda event, data: None)
        )
        self.progress = progress if processes.is_first else False
        self.obs = SplitObservations.of(obs, recipe.watch.held_out, device)
        self.unknowns = unknowns_of(obs, self.obs.index, recipe)
        self.batches = MicroBatches(recipe, len(self.obs.train), device, self.on_event)
        self.laps_before = 0

    def use_estimates(self, prior: Prior) -> None:
        """Use the noise levels or operator parameters of a prior of this run, if the observations' are unknown."""
        if self.unknowns.is_active:
            self.obs = SplitObservations.of(
                self.unknowns.with_estimates(prior), self.recipe.watch.held_out, self.device
            )
            self.__dict__.pop("conditioning", None)  # they depend on the operators and the noise

    @contextmanager
    def interruptible(self, doing: str, limited: bool = True) -> Iterator[None]:
        """Raise `Preempted` at the next step after a request to stop, in this process or another.

        Results that are not on disk are recomputed when the run resumes.

        Args:
            doing: The activity, for the message of `Preempted`.
            limited: Whether the time limit of the run counts as a request.
        """

        def check() -> None:
            self.processes.check()
            if self.interruption.should_stop if limited else self.interruption.requested:
                raise Preempted(doing)

        with polled(check):
            check()
            yield

    def saved_prior(self, lap: int, device: torch.device | str = "cpu") -> Prior:
        """Load the prior of a lap from the run folder."""
        return load_prior(self.run.prior_file(lap), device, self.run.origin("prior", lap))

    @cached_property
    def start(self) -> Prior:
        """The prior of lap 0 on the device. All laps use its mean, covariance, scale and noise levels."""
        return self.saved_prior(0, self.device)

    @cached_property
    def bound(self) -> float:
        """The largest |x| of an accepted draw."""
        # from a copy on the CPU, so that all devices have the same bound
        return largest_plausible(self.saved_prior(0), self.recipe.e_step.bound)

    @cached_property
    def conditioning(self) -> Conditioning | None:
        """The operators for the training of a conditional network; None if the network is not conditional."""
        if not self.recipe.conditional:
            return None
        train, scale = self.obs.train, self.start.scale
        if is_simulated(train):
            return Simulations(train, scale, self.recipe.seed, self.device)
        return TrainingOperators(train, scale, self.device)

    def store(self, lap: int) -> DrawStore:
        """Return the draws of a lap on disk."""
        return DrawStore.of_lap(self.run, lap, len(self.obs.train), self.recipe.e_step.shard)
