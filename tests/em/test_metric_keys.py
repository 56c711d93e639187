"""The metrics that warnings and verdicts read are those that laps record (`runs/lap_metrics.py`)."""

from __future__ import annotations

import ast
import inspect

import pytest

from diffem.em import diagnosis, verdict
from diffem.runs.lap_metrics import METRIC

# entries of a lap that are not numbers
OTHERS = {"start", "predictive_each", "noise_levels", "noise_high"}


def keys_read(source: str) -> set[str]:
    """The strings by which a module reads from the metrics of a lap: `lap["key"]`, `lap.get("key")`."""
    keys = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load) and isinstance(node.slice, ast.Constant):
            keys.add(node.slice.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            keys |= {argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant)}
        if isinstance(node, ast.GeneratorExp) and isinstance(node.generators[0].iter, ast.Tuple):
            keys |= {part.value for part in node.generators[0].iter.elts if isinstance(part, ast.Constant)}
    return {key for key in keys if isinstance(key, str)}


@pytest.mark.parametrize("module", [diagnosis, verdict])
def test_every_key_is_a_recorded_metric(module):
    keys = keys_read(inspect.getsource(module))
    assert keys
    assert keys - OTHERS <= METRIC.keys()


@pytest.mark.parametrize("measure", [verdict.PREDICTION, verdict.SIMULATION])
def test_laps_are_compared_by_recorded_metrics(measure):
    assert measure.key in METRIC
    assert METRIC[measure.key].error == measure.error
