"""Numbers that depend on the number of observations: optimizer steps, and held-out observations of a small set.

    train: {steps: {epochs: 60, least: 1000, most: 20000}}

The `recipe.yaml` of a run contains the resulting numbers.
"""

from __future__ import annotations

import math
from typing import Any

from .schedule import Epochs
from .schema import Recipe
from .sections import Train

STEPS = ("steps", "first_steps")  # keys of `train` that may be `Epochs`


def resolve_steps(recipe: Recipe, observations: int) -> Recipe:
    """Replace every `Epochs` of a recipe by a number of steps, and limit the number of held-out observations.

    Args:
        observations: The number of observations, including the held-out ones.
    """
    watch = recipe.watch
    if watch.held_out_share < 1:
        most = math.floor(watch.held_out_share * observations)
        watch = watch.model_copy(update={"held_out": min(watch.held_out, most)})
    trained = max(1, observations - watch.held_out)
    train, current = recipe.train, {name: getattr(recipe.train, name) for name in (*STEPS, "batch")}
    stages = []
    for stage in recipe.stages:
        current |= _named(stage.train)
        stages.append(stage.model_copy(update={"train": _without_epochs(stage.train, current, trained)}))
    final = recipe.final
    if final is not None:
        current |= _named(final.train)
        final = final.model_copy(update={"train": _without_epochs(final.train, current, trained)})
    updated = train.model_copy(update={name: count_steps(getattr(train, name), trained, train.batch) for name in STEPS})
    changed = recipe.model_copy(update={"train": updated, "watch": watch, "stages": stages, "final": final})
    return recipe if changed == recipe else changed


def count_steps(steps: int | Epochs | None, observations: int, batch: int) -> int | None:
    """Return the number of steps of `epochs` passes over the observations in batches, between `least` and `most`."""
    if not isinstance(steps, Epochs):
        return steps
    return min(max(math.ceil(steps.epochs * observations / batch), steps.least), steps.most)


def _named(changes: dict[str, Any]) -> dict[str, Any]:
    """Return the keys of a stage's changes that determine its steps; they have not been validated."""
    named = {name: changes[name] for name in (*STEPS, "batch") if name in changes}
    whole = Train.model_validate({"steps": 1, **named})
    return {name: getattr(whole, name) for name in named}


def _without_epochs(changes: dict[str, Any], current: dict[str, Any], observations: int) -> dict[str, Any]:
    """Replace every `Epochs` that applies in a stage by a number of steps, if the stage changes it or the batch.

    Args:
        changes: The changes of the stage.
        current: The keys `STEPS` and `batch` that apply in it.
    """
    counted = {name: value for name, value in current.items() if isinstance(value, Epochs)}
    return changes | {
        name: count_steps(value, observations, current["batch"])
        for name, value in counted.items()
        if name in changes or "batch" in changes
    }
