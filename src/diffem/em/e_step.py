"""The E-step of a lap: all shards are drawn and written; missing shards of earlier laps are recomputed."""

from __future__ import annotations

import math
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.progress import Progress
from ..priors import Prior
from ..runs.draws import DrawStore
from .context import RunContext
from .expectation import Shard, clean_shard, draw_shard, fresh_count
from .shard_report import summary

CAPTURED_NUMBERS = 1 << 20  # below this batch size in numbers, launching GPU kernels takes longer than the kernels


def expect(context: RunContext, lap: int, prior: Prior, metrics: dict[str, Any]) -> DrawStore:
    """Draw all shards of a lap; each process draws some of them, and shards on disk are skipped.

    Args:
        context: The run.
        lap: The lap.
        prior: The prior of the previous lap.
        metrics: The metrics of the lap, which are added to.
    """
    began, processes = time.monotonic(), context.processes
    store, options = context.store(lap), context.recipe.at(lap).e_step
    shards, fresh = len(store), options.fresh_at(lap)
    total = fresh_count(len(context.obs.train), fresh) * options.draws // processes.count
    with Progress(f"lap {lap} E", total, "draws", context.progress) as bar:
        for k in processes.claim_indices(shards):
            rows = slice(*store.range(k))
            if store.has(k):
                bar.total -= fresh_count(rows.stop - rows.start, fresh) * options.draws
                continue
            shard = draw(context, lap, prior, k, rows, bar)
            store.write(k, shard.x, shard.report)
            del shard  # the next one needs this memory
    metrics["e_seconds"] = time.monotonic() - began
    processes.barrier()  # all shards are written
    metrics["e_batch"] = context.batches.last_batch
    metrics |= {**summary(list(store.reports())), "bound": context.bound}
    context.on_event("expectation", {"lap": lap, **metrics})
    return store


def draw(context: RunContext, lap: int, prior: Prior, k: int, rows: slice, bar: Progress) -> Shard:
    """Make the draws of shard k; rows: its training observations."""
    options = context.recipe.at(lap).e_step
    if options.clean:
        bar.advance(rows.stop - rows.start)
        return clean_shard(context.obs.train[rows])

    def shard(batch: int) -> Shard:
        context.batches.last_batch = batch
        return draw_shard(
            prior,
            context.obs.train[rows].to(context.device),
            options,
            index=context.obs.index[rows],
            seed=context.recipe.seed,
            lap=context.laps_before + lap,
            bound=context.bound,
            previous=partial(earlier_draws, context, lap - 1, k) if lap > 1 else None,
            fresh=options.fresh_at(lap),
            batch_size=batch,
            captured=context.device.type == "cuda" and batch * math.prod(prior.event_shape) < CAPTURED_NUMBERS,
            progress=bar,
        )

    return context.batches.within_memory(prior, lap, shard)


def earlier_draws(context: RunContext, lap: int, k: int) -> Tensor:
    """Read the draws of shard k of an earlier lap, or recompute them if they are damaged or were removed."""
    store = context.store(lap)
    try:
        return store.read(k)
    except InputError:
        if store.has(k):
            raise
    rows = slice(*store.range(k))
    prior = context.saved_prior(lap - 1, context.device)
    total = (rows.stop - rows.start) * context.recipe.at(lap).e_step.draws
    with Progress(f"lap {lap} E, shard {k} again", total, "draws", context.progress) as bar:
        shard = draw(context, lap, prior, k, rows, bar)
    store.write(k, shard.x, shard.report)
    return store.read(k)


def unseen_draws(context: RunContext, lap: int, prior: Prior) -> torch.Tensor | None:
    """Make one draw per held-out observation, `(n, *event)`, as the E-step does.

    The loss on these draws shows whether the network overfits its training draws.
    """
    obs = context.obs.held_out
    if obs is None or not context.processes.is_first:
        return None
    options = context.recipe.at(lap).e_step.independent()
    if options.clean:
        return obs.y
    address: dict[str, Any] = {"index": context.obs.held_index, "seed": context.recipe.seed}
    sample = partial(draw_shard, prior, obs, options, **address, lap=context.laps_before + lap, bound=context.bound)
    return context.batches.within_memory(prior, lap, lambda batch: sample(batch_size=batch)).x[0]
