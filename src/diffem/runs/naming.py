"""The name of a run, which all its files contain (`files/origin.py`)."""

from __future__ import annotations

from ..files.reading import json_checksum
from .schema import Recipe

# Keys that do not change the contents of a run's files: laps may be added, and observations have their own fingerprint.
NOT_IN_NAME = {"name", "about", "laps", "data"}


def run_name(recipe: Recipe, observations: str, start: str | None) -> str:
    """Return the name of a run: a hash of everything that determines its results.

    Args:
        recipe: The recipe, without the keys in `NOT_IN_NAME`.
        observations: The fingerprint of the observations.
        start: The fingerprint of a prior that was passed from Python to start from; None if there is none.
    """
    settings = {name: value for name, value in recipe.model_dump(mode="json").items() if name not in NOT_IN_NAME}
    return json_checksum({"recipe": settings, "observations": observations, "start": start})[:32]
