"""Every number that a lap records is in the list of metrics, and files are validated against it."""

import json
import math

import diffem
from diffem.files.writing import portable_json
from diffem.runs.lap_metrics import METRIC, METRICS, wrong_number

from ..em.small import CONDITIONAL, observations

FEW = {"laps": 1, "stages": [], "train.steps": 8, "train.measured": {"value": 0.5, "last": 1}, "e_step.steps": 3}
NO_NUMBERS = {"predictive_each", "files", "warnings", "notes", "origin"}


def test_a_run_records_listed_numbers_only(tmp_path):
    first = diffem.fit(observations(), CONDITIONAL, tmp_path / "first", changes=FEW, progress=False, report=False)
    changes = FEW | {"start": str(first.path)}
    second = diffem.fit(observations(), CONDITIONAL, tmp_path / "second", changes=changes, progress=False, report=False)
    laps = [*first.laps, *second.laps]
    assert set().union(*laps) - METRIC.keys() - NO_NUMBERS - {"start", "checksum"} == set()
    assert all(wrong_number(lap) is None for lap in laps)


def test_numbers_that_json_does_not_have_become_null():
    assert json.loads(portable_json({"a": [math.nan, 1.0], "b": (math.inf, "x"), "c": 2})) == {
        "a": [None, 1.0],
        "b": [None, "x"],
        "c": 2,
    }


def test_entries_of_other_versions_are_accepted_and_wrong_types_are_found():
    assert wrong_number({"lap": 1, "loss": None, "a metric of a later version": "?"}) is None
    assert wrong_number({"lap": 1, "loss": "small"}) == "loss"


def test_the_list_is_consistent():
    assert len(METRIC) == len(METRICS)
    assert all(metric.error is None or metric.error in METRIC for metric in METRICS)
    assert all(metric.heading for metric in METRICS if metric.curve)
    assert METRIC["predictive_log_likelihood"].text({"predictive_log_likelihood": -0.5, "predictive_error": 0.1}) == (
        "-0.500 ± 0.100"
    )
    assert METRIC["loss"].text({"loss": float("nan")}) == METRIC["loss"].text({}) == "–"
