"""The tables benchmark: fraction and mechanism of masks, ranks over complete cases, encoding of categories."""

import numpy as np
import pytest

from benchmarks.tables.collect import averaged, comparable, figures, ranks
from benchmarks.tables.data import Table
from benchmarks.tables.masks import MECHANISMS, missing
from benchmarks.tables.measures import Imputation, measure
from benchmarks.tables.methods import OneHot


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_masks_have_the_given_fraction_and_leave_a_value_in_every_row(mechanism):
    values = np.random.default_rng(0).standard_normal((4000, 10))
    gone = missing(values, mechanism, 0.3, 0)
    assert not gone.all(1).any()
    hidden = gone.mean(0)[gone.any(0)]
    assert (np.abs(hidden - 0.3) < 0.03).all()  # four standard errors of 4,000 values
    assert gone.any(0).sum() == (7 if mechanism == "mar" else 10)
    assert np.array_equal(gone, missing(values, mechanism, 0.3, 0))
    assert not np.array_equal(gone, missing(values, mechanism, 0.3, 1))


def test_gaps_depend_on_complete_columns_if_they_are_missing_at_random():
    values = np.random.default_rng(0).standard_normal((4000, 10))
    gone = missing(values, "mar", 0.3, 0)
    complete = values[:, ~gone.any(0)]
    related = np.abs(np.corrcoef(complete.T, gone[:, gone.any(0)].T)[:3, 3:])
    assert related.max(0).min() > 0.1  # six standard errors of a correlation of 0


def test_one_hot_columns_decode_to_what_they_encode():
    values = np.array([[0.5, 2], [1.5, 0], [-1.0, 1]])
    code = OneHot(Table("t", values, np.zeros(3), ("a", "b"), ((), ("x", "y", "z"))))
    decoded, probabilities = code.decode(code.encode(values))
    assert np.array_equal(decoded, values)
    assert np.array_equal(probabilities[1].argmax(1), [2, 0, 1])
    assert np.isnan(code.encode(np.array([[0.5, np.nan]]))[0, 1:]).all()


def test_ranks_are_means_over_cases_that_all_methods_were_run_on():
    lines = [
        {"table": table, "mechanism": "mcar", "mask": mask, "method": method, "rmse_out": error + mask}
        for table, errors in (("one", (1.0, 2.0)), ("two", (3.0, 2.0)), ("three", (1.0,)))
        for mask in (0, 1)
        for method, error in zip(("ours", "other"), errors, strict=False)
    ]
    rows = averaged(lines)
    assert len(rows) == 5
    assert rows[0]["masks"] == 2
    assert ranks(rows, "rmse_out") == {"mean_rank_rmse_out_other": 1.5, "mean_rank_rmse_out_ours": 1.5}


def test_coverage_is_averaged_by_table_and_by_case():
    same = {"method": "diffem"} | dict.fromkeys(("rmse_out", "rmse_in", "mae_out", "crps_out", "downstream"), 0.5)
    lines = [
        {"table": table, "mechanism": mechanism, "mask": mask, "coverage90_out": coverage} | same
        for table, mechanism, mask, coverage in (
            ("a", "mcar", 0, 0.84), ("a", "mcar", 1, 0.86), ("a", "mar", 0, 0.90), ("b", "mcar", 0, 0.95),
        )
    ]  # fmt: skip
    found = figures(lines)
    assert found["coverage90_cases"] == 3  # 0.85, 0.90 and 0.95
    assert found["coverage90_inside"] == 1
    assert found["coverage90_tables_inside"] == 1
    assert found["coverage90_least"] == pytest.approx((0.84 + 0.86 + 0.90) / 3)
    assert found["coverage90_most"] == 0.95
    assert found["downstream_diffem"] == 0.5


def test_methods_are_compared_with_the_masks_that_all_were_run_with():
    lines = [
        {"table": "t", "mechanism": mechanism, "mask": mask, "method": method}
        for mechanism, mask, method in (
            ("mcar", 0, "ours"), ("mcar", 0, "other"), ("mcar", 1, "ours"), ("mar", 0, "ours"), ("mar", 1, "other"),
        )
    ]  # fmt: skip
    assert comparable(lines) == [*lines[:2], *lines[3:]]  # a case without a common mask stays, and has no rank


def test_categories_are_measured_where_some_are_missing():
    truth, categorical = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([False, True])
    imputed = Imputation(truth, truth, None, {1: np.eye(2)[[1, 0]]})
    assert "accuracy" not in measure(imputed, truth, np.array([[True, False], [True, False]]), categorical)
    assert measure(imputed, truth, np.ones((2, 2), dtype=bool), categorical)["accuracy"] == 1
