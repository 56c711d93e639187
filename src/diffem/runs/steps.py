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
    train = recipe.train
    stages = [
        stage.model_copy(update={"train": _without_epochs(stage.train, trained, train.batch)})
        for stage in recipe.stages
    ]
    final = recipe.final
    if final is not None:
        final = final.model_copy(update={"train": _without_epochs(final.train, trained, train.batch)})
    updated = train.model_copy(
        update={name: count_steps(getattr(train, name), trained, train.batch) for name in ("steps", "first_steps")}
    )
    changed = recipe.model_copy(update={"train": updated, "watch": watch, "stages": stages, "final": final})
    return recipe if changed == recipe else changed


def count_steps(steps: int | Epochs | None, observations: int, batch: int) -> int | None:
    """Return the number of steps of `epochs` passes over the observations in batches, between `least` and `most`."""
    if not isinstance(steps, Epochs):
        return steps
    return min(max(math.ceil(steps.epochs * observations / batch), steps.least), steps.most)


def _without_epochs(changes: dict[str, Any], observations: int, batch: int) -> dict[str, Any]:
    """Replace every `Epochs` in the changes of a stage, which are mappings that have not been validated."""
    named = {name: changes[name] for name in ("steps", "first_steps") if isinstance(changes.get(name), dict)}
    whole = Train.model_validate({"steps": 1, **named})
    return changes | {
        name: count_steps(getattr(whole, name), observations, changes.get("batch", batch)) for name in named
    }
