"""The name of a run, which every file of it carries (`files/origin.py`)."""

from __future__ import annotations

from ..files.reading import json_checksum
from .schema import Recipe

# What does not decide the contents of a run's files: more laps may be added later, the observations have a fingerprint of their own.
NOT_IN_NAME = {"name", "about", "laps", "data"}


def run_name(recipe: Recipe, observations: str, start: str | None) -> str:
    """The name of a run, a hash of all that decides what it computes.

    Args:
        recipe: The recipe; `NOT_IN_NAME` lists the keys that are left out.
        observations: The fingerprint of the observations.
        start: The fingerprint of a prior that was passed from Python to start from; None if there is none.
    """
    settings = {name: value for name, value in recipe.model_dump(mode="json").items() if name not in NOT_IN_NAME}
    return json_checksum({"recipe": settings, "observations": observations, "start": start})[:32]
