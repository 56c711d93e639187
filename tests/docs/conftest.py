"""Tiny runs for the documentation: few laps, small networks and few steps, regardless of the settings on a page."""

from importlib.util import find_spec

import pytest

import diffem.api as fitting
from diffem.runs.recipe import load_recipe

from ..undrawn import _reports_undrawn  # noqa: F401 (a fixture)

TINY = {
    "laps": 1, "train.steps": 40, "train.first_steps": 40, "train.batch": 32, "network.hidden": [32],
    "e_step.steps": 2, "e_step.draws": 1, "e_step.redraws": 0, "gaussian.rounds": 2,
    "watch.held_out": 16, "watch.samples": 32, "watch.draws": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def tiny():
    """Make `fit` use tiny settings: the library and the command line both run recipes through one function."""
    whole = fitting.run_recipe

    def run_recipe(recipe, *arguments, **options):
        return whole(load_recipe(recipe, TINY), *arguments, **options)

    fitting.run_recipe = run_recipe
    with pytest.MonkeyPatch.context() as patch:
        if find_spec("sklearn") and find_spec("pandas"):
            patch.setattr("diffem.tables.recipe.FOLDS", 1)  # one run per imputer
        yield fitting.fit
    fitting.run_recipe = whole
