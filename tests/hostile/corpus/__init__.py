"""Inputs from a stranger: damaged, absurd, or made to hang, to fill the memory, to run code or to lead somewhere else.

A new one is a function with a line above it that says which command it is given to, what it is, and a word its refusal must contain. It writes
into an empty folder and returns the path the command is given. Large files are holes. Every input is the same each time it is made.
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
)  # importing one enters its inputs
