"""Untrusted inputs: damaged, absurd, or made to hang, to exhaust memory, to execute code or to lead to other files.

A new input is a function with a decorator, which names the command, describes the input, and contains a pattern that
the error message must match. The function writes into an empty folder and returns the path for the command. Large files
are sparse. Every input is reproducible.
"""

from . import arrays, exports, foreign, images, observations, priors, recipes, runs, visits, volumes
from .registry import COMMANDS, CORPUS, SOUND

__all__ = ["COMMANDS", "CORPUS", "FAMILIES", "SOUND"]

FAMILIES = (
    priors,
    observations,
    recipes,
    runs,
    foreign,
    exports,
    arrays,
    images,
    volumes,
    visits,
)  # importing a module registers its inputs
