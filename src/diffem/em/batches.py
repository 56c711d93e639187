"""How many draws are made at a time: chosen once for the device, fewer when memory runs out. What is drawn does not depend on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

from ..files.memory import is_out_of_memory
from ..priors import DiffusionPrior, Prior
from ..runs.recipe import Recipe

Made = TypeVar("Made")


class MicroBatches:
    """The batch size of a run's draws.

    Args:
        recipe: The run's recipe.
        observations: The number of training observations.
        device: Where draws are made.
        say: Called with `("memory", {...})` each time memory runs out.
    """

    def __init__(
        self, recipe: Recipe, observations: int, device: torch.device, say: Callable[[str, dict[str, Any]], None]
    ) -> None:
        self.recipe, self.device, self.say = recipe, device, say
        self.shard = min(recipe.e_step.shard, observations)
        self.compiled: int | None = None  # the batch a network is compiled for
        self.fits = 1 << 62  # the largest batch that is not known to be too large

    def prepare(self, prior: Prior) -> int:
        """Settle the batch, and make the network fast at it."""
        asked = self.recipe.e_step.batch
        if not isinstance(prior, DiffusionPrior):
            return min(asked or prior.batch_for(self.shard), self.fits)
        if self.device.type == "cuda":
            prior.compute_in(self.recipe.drawing_precision)
        if self.compiled is None:  # once: a network is compiled for one size
            self.compiled = asked or prior.batch_for(self.shard)
        batch = min(self.compiled, self.fits)
        if self.device.type == "cuda":
            prior.accelerate(batch)
        return batch

    def within_memory(self, prior: Prior, lap: int, make: Callable[[int], Made]) -> Made:
        """`make(batch)`, again with smaller batches while the device runs out of memory."""
        tries = 0
        while True:
            batch = self.prepare(prior)
            try:
                return make(batch)
            except RuntimeError as error:
                if not is_out_of_memory(error) or batch == 1:
                    raise
            tries += 1
            if self.device.type == "cuda":
                torch.cuda.empty_cache()
            if tries > 1:  # the first time something else may have taken the memory for a moment
                self.fits = batch // 2
            self.say("memory", {"lap": lap, "batch": min(batch, self.fits)})
