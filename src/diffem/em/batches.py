"""The batch size of the draws: chosen once for the device and reduced after out-of-memory errors.

The draws do not depend on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..core.compile import run_eagerly
from ..files.memory import is_out_of_memory
from ..priors import DiffusionPrior, Prior
from ..runs.recipe import Recipe

Result = TypeVar("Result")


class MicroBatches:
    """The batch size of a run's draws.

    Args:
        observations: The number of training observations.
        device: The device that draws are computed on.
        on_event: Called with `("memory", {...})` after each out-of-memory error.

    Attributes:
        compiled_batch: The batch size that the network is compiled for; None before the first use.
        max_batch: Upper bound on the batch size; lowered after an out-of-memory error.
        last_batch: The batch size of the last E-step; 0 if this process has drawn nothing.
    """

    def __init__(
        self, recipe: Recipe, observations: int, device: torch.device, on_event: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.recipe, self.device, self.on_event = recipe, device, on_event
        self.shard = min(recipe.e_step.shard, observations)
        self.compiled_batch: int | None = None
        self.max_batch = 1 << 62
        self.last_batch = 0

    def prepare(self, prior: Prior, last: bool = False) -> int:
        """Choose the batch size, compile the network for it on a GPU, and return it.

        Args:
            last: Whether no E-step follows. A network that has made no draws yet is then not compiled: a minute of
                compilation would serve a few evaluations.
        """
        requested = self.recipe.e_step.batch
        if not isinstance(prior, DiffusionPrior):
            return min(requested or prior.batch_for(self.shard), self.max_batch)
        if self.device.type == "cuda":
            prior.compute_in(self.recipe.drawing_precision)
        if last and self.compiled_batch is None:
            run_eagerly(prior.network)
            return min(requested or prior.batch_for(self.shard), self.max_batch)
        if self.compiled_batch is None:  # a network is compiled for one size only
            self.compiled_batch = requested or prior.batch_for(self.shard)
        batch = min(self.compiled_batch, self.max_batch)
        if self.device.type == "cuda":
            prior.accelerate(batch)
        return batch

    def within_memory(self, prior: Prior, lap: int, compute: Callable[[int], Result], last: bool = False) -> Result:
        """Return `compute(batch)`; after an out-of-memory error, retry with smaller batches.

        Args:
            prior: The prior that `compute` evaluates.
            lap: The lap, for the message.
            compute: A function of the batch size.
            last: Whether no E-step follows; see `prepare`.
        """
        attempts = 0
        while True:
            batch = self.prepare(prior, last)
            try:
                return compute(batch)
            except RuntimeError as error:
                if not is_out_of_memory(error) or batch == 1:
                    raise
            attempts += 1
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if attempts > 1:  # the first time, another process may have used the memory for a moment
                self.max_batch = batch // 2
            self.on_event("memory", {"lap": lap, "batch": min(batch, self.max_batch)})
