"""The imputer as an estimator: scikit-learn's own checks, pipelines, data frames, and what is refused."""

import pickle

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from diffem.core.errors import InputError
from diffem.priors import GaussianPrior
from diffem.tables import DiffusionImputer
from diffem.tables.engine import Model

# As little training as there can be: these tests are about the interface.
TINY = {
    "gaussian.rounds": 2,
    "network": {"kind": "residual", "hidden": [8], "embedding": 4},
    "train.batch": 16,
    "e_step.steps": 2,
    "watch.held_out": 0,
}


def tiny(**options) -> DiffusionImputer:
    defaults = {"laps": 1, "steps": 2, "folds": 1, "draws": 3, "sampling_steps": 2, "random_state": 0, "recipe": TINY}
    return DiffusionImputer(**(defaults | options))


@parametrize_with_checks([tiny()])
def test_scikit_learn_checks_pass(estimator, check):
    check(estimator)


def table(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    """A table with every kind of column, a fifth of it missing."""
    random = np.random.default_rng(seed)
    a = random.standard_normal(rows)
    whole = pd.DataFrame(
        {
            "number": a,
            "single": np.exp(a).astype(np.float32),
            "count": pd.array(random.poisson(np.exp(a)), dtype="Int64"),
            "flag": pd.array(a > 0, dtype="boolean"),
            "grade": pd.Categorical(np.where(a > 0.5, "high", np.where(a < -0.5, "low", "middle"))),
            "word": np.where(a > 0, "x", "y"),
            "same": 1.5,
        },
        index=[f"row {i}" for i in range(rows)],
    )
    return whole.mask(random.random(whole.shape) < 0.2)


@pytest.fixture(scope="module")
def fitted() -> DiffusionImputer:
    return tiny().fit(table())


def test_frames_come_back_complete_with_names_types_and_observed_values(fitted):
    gaps = table()
    filled = fitted.transform(gaps)
    assert not filled.isna().any().any()
    assert list(filled.columns) == list(gaps.columns) == fitted.get_feature_names_out().tolist()
    assert filled.index.equals(gaps.index)
    assert filled.dtypes.equals(gaps.dtypes)
    pd.testing.assert_frame_equal(filled.where(gaps.notna()), gaps.where(gaps.notna()))


def test_every_imputed_value_is_one_that_the_column_can_hold(fitted):
    gaps = table(seed=1)  # rows that were not in the fit
    for filled in [fitted.transform(gaps), *fitted.sample_posterior(gaps, 4)]:
        assert (filled["count"] >= 0).all()
        assert set(filled["grade"]) <= {"low", "middle", "high"}
        assert set(filled["word"]) <= {"x", "y"}
        assert (filled["same"] == 1.5).all()
        assert filled["number"].between(*table()["number"].agg(["min", "max"])).where(gaps["number"].isna(), True).all()


def test_multiple_imputations_differ_and_agree_where_values_were_observed(fitted):
    gaps = table()
    tables = fitted.sample_posterior(gaps)
    assert len(tables) == fitted.n_imputations == 5
    missing = gaps["number"].isna()
    drawn = np.stack([t["number"].to_numpy() for t in tables])
    assert (drawn[:, missing].std(0) > 0).all()
    assert (drawn[:, ~missing] == gaps["number"][~missing].to_numpy()).all()


def test_a_row_is_imputed_in_the_same_way_in_any_table(fitted):
    gaps = table()
    whole = fitted.transform(gaps)["number"]
    alone = pd.concat([fitted.transform(gaps.iloc[[i]])["number"] for i in (3, 17)])
    # the products of a network round differently in batches of other sizes
    np.testing.assert_allclose(alone, whole.iloc[[3, 17]], rtol=1e-4, atol=1e-4)


def test_the_seed_decides_and_clones_repeat(fitted):
    gaps = table()
    assert clone(fitted).fit(gaps).transform(gaps).equals(fitted.transform(gaps))
    other = tiny(random_state=1).fit(gaps).transform(gaps)
    assert not other["number"].equals(fitted.transform(gaps)["number"])


def test_arrays_stay_arrays_and_set_output_makes_frames():
    X = np.where(np.random.default_rng(0).random((40, 3)) < 0.2, np.nan, np.random.default_rng(1).random((40, 3)))
    imputer = tiny().fit(X)
    assert isinstance(imputer.transform(X), np.ndarray)
    frame = imputer.set_output(transform="pandas").transform(X)
    assert list(frame.columns) == ["x0", "x1", "x2"]
    assert not np.isnan(frame.to_numpy()).any()


def test_a_pipeline_with_a_classifier_is_cross_validated():
    random = np.random.default_rng(0)
    X = random.standard_normal((90, 4))
    y = X[:, 0] > 0
    X[random.random(X.shape) < 0.1] = np.nan
    scores = cross_val_score(make_pipeline(tiny(), LogisticRegression()), X, y, cv=3)
    assert scores.mean() > 0.75  # the label is the sign of a column of which nine values in ten are there


def test_the_estimate_is_the_mean_or_the_median_of_the_draws():
    gaps = table()[["number", "count"]]
    missing = gaps["number"].isna()
    imputer = tiny(draws=100).fit(gaps)
    imputer.model_ = Model((GaussianPrior(torch.zeros(2), torch.eye(2)),))  # whose draws are exact
    drawn = np.stack([t["number"][missing] for t in imputer.sample_posterior(gaps, 100)])
    # the mean differs from that of the draws by what it is more exact: 100 draws tell it to 1/10 of their spread
    assert (abs(imputer.transform(gaps)["number"][missing] - drawn.mean(0)) < 4 * drawn.std(0) / 10).all()
    imputer.set_params(estimate="median")
    np.testing.assert_allclose(imputer.transform(gaps)["number"][missing], np.median(drawn, 0), rtol=1e-6)


def test_the_predictions_of_gaps_agree_with_the_completed_table(fitted):
    gaps = table()
    found, filled = fitted.predict_gaps(gaps), fitted.transform(gaps)
    for name, predictions in found.items():
        assert np.array_equal(predictions.rows, np.flatnonzero(gaps[name].isna()))
        values = filled[name].to_numpy()[predictions.rows]
        estimates = predictions.column.values(predictions.estimate())
        assert (pd.Series(estimates).astype(gaps[name].dtype).to_numpy() == values).all()  # "single" is of float32
    grades = found["grade"]
    np.testing.assert_allclose(grades.probabilities.sum(1), 1)
    assert grades.probabilities.shape == (gaps["grade"].isna().sum(), 3)
    assert "number" in found
    assert found["number"].probabilities is None


def test_several_runs_are_calibrated_on_all_rows_and_resumed(tmp_path):
    gaps = table(48)[["number", "grade"]]
    imputer = tiny(folds=2, out=tmp_path).fit(gaps)
    assert len(imputer.model_.priors) >= 2
    assert len(list(tmp_path.glob("fold-*/run.json"))) == 2
    again = clone(imputer).fit(gaps)  # reads the finished runs
    assert again.transform(gaps).equals(imputer.transform(gaps))


def test_whole_numbers_named_as_numeric_have_estimates_in_between():
    gaps = table()[["number", "count"]]
    filled = tiny(columns={"count": "numeric"}).fit(gaps).transform(gaps)["count"]
    assert filled.dtype == "Float64"
    assert (filled % 1 != 0).any()


def test_columns_that_do_not_vary_need_no_model():
    filled = tiny().fit_transform(pd.DataFrame({"a": [1.0, None, 1.0], "b": ["x", "x", None]}))
    assert filled["a"].tolist() == [1.0, 1.0, 1.0]
    assert filled["b"].tolist() == ["x", "x", "x"]


def test_rows_without_any_value_are_imputed(fitted):
    assert not fitted.transform(table().iloc[:2].mask(np.ones((2, 7), dtype=bool))).isna().any().any()


REFUSED = {
    "a column without any value": (
        pd.DataFrame({"a": [1.0, 2.0], "empty": [None, None]}),
        "'empty' has no observed value",
    ),
    "infinite numbers": (pd.DataFrame({"a": [1.0, np.inf, 2.0]}), "'a' holds 1 infinite"),
    "duplicate names": (pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "a"]), "more than once: ['a']"),
    "text": (pd.DataFrame({"a": [f"sentence {i}" for i in range(50)]}), "seems to hold text: 50 different values"),
    "dates": (pd.DataFrame({"a": pd.date_range("2026-01-01", periods=3)}), "convert it to numbers"),
    "lists": (pd.DataFrame({"a": [[1], [2], [3]]}), "must be a number, a string or a Boolean"),
    "one row": (pd.DataFrame({"a": [1.0]}), "1 sample"),
    "no columns": (pd.DataFrame(index=[0, 1]), "0 feature"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_bad_tables_are_refused(name):
    X, words = REFUSED[name]
    with pytest.raises(InputError) as error:
        tiny().fit(X)
    assert words in str(error.value)


def test_new_rows_may_have_other_types_and_categories(fitted):
    new = table(seed=1).iloc[:4].astype({"flag": object})
    new["grade"] = pd.Categorical(["top", None, "low", None], categories=["top", "low"])
    new["word"] = np.nan  # a column of floats
    filled = fitted.transform(new)
    assert not filled.isna().any().any()
    assert filled["grade"].iloc[[0, 2]].tolist() == ["top", "low"]
    assert set(filled["grade"].iloc[[1, 3]]) <= {"low", "middle", "high"}
    assert set(filled["word"]) <= {"x", "y"}


def test_a_fitted_imputer_is_pickled(fitted):
    assert pickle.loads(pickle.dumps(fitted)).transform(table()).equals(fitted.transform(table()))


def test_other_columns_at_transform_are_refused(fitted):
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.transform(table().rename(columns={"number": "other"}))
    with pytest.raises(ValueError, match="same order"):
        fitted.transform(table()[table().columns[::-1]])
    with pytest.raises(InputError, match="0 sample"):
        fitted.transform(table().iloc[:0])
    with pytest.raises(ValueError, match="features"):
        tiny().fit(np.eye(4)).transform(np.eye(3))
    with pytest.raises(InputError, match="'number' is numeric, but not all of its values are numbers"):
        fitted.transform(table().assign(number="seven"))
    with pytest.raises(
        InputError, match="'word' holds values of another type than in fit: 1, 1, 1 instead of 'x', 'y'"
    ):
        fitted.transform(table().assign(word=1))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folds": 0}, "folds must be a positive integer, got 0"),
        ({"laps": 0}, "laps must be a positive integer, got 0"),
        ({"draws": 2.5}, "draws must be a positive integer, got 2.5"),
        ({"estimate": "mode"}, "estimate must be 'mean' or 'median', got 'mode'"),
        ({"columns": {"colour": "categorical"}}, "['colour'], which the table does not have"),
        ({"columns": {"number": "ordinal"}}, "the kind must be one of"),
        ({"columns": {"number": "integer"}}, "must hold whole numbers, because its kind was set to integer"),
        ({"recipe": {"train.speed": 1}}, "unknown key"),
    ],
)
def test_bad_parameters_are_refused(options, words):
    with pytest.raises(InputError) as error:
        tiny(**options).fit(table())
    assert words in str(error.value)


def test_the_number_of_imputations_must_be_positive(fitted):
    with pytest.raises(InputError, match="n_imputations must be a positive integer, got 0"):
        fitted.sample_posterior(table(), 0)
