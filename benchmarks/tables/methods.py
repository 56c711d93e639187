"""The imputers that are compared. Each is fitted to a table with gaps and completes two others, or the same.

Rivals see columns of numbers standardised and categories as one column of 0 and 1 each; diffem sees the table itself.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd

from .data import Table
from .measures import Imputation

DRAWS = 20
Completed = list[Imputation]


class OneHot:
    """Values `(n, columns)` with category codes ↔ a matrix with a column of 0 and 1 per category."""

    def __init__(self, table: Table) -> None:
        self.categories = [len(names) for names in table.categories]

    def encode(self, values: np.ndarray) -> np.ndarray:
        parts = []
        for k, count in enumerate(self.categories):
            column = values[:, k : k + 1]
            parts.append(np.where(np.isnan(column), np.nan, column == np.arange(count)) if count else column)
        return np.concatenate(parts, 1)

    def decode(self, matrix: np.ndarray) -> tuple[np.ndarray, dict[int, np.ndarray]]:
        """The values `(n, columns)`, and per column of categories their probabilities."""
        values, probabilities, place = [], {}, 0
        for k, count in enumerate(self.categories):
            part = matrix[:, place : place + max(1, count)]
            place += max(1, count)
            if count:
                p = np.clip(part, 0, 1) + 1e-6
                probabilities[k] = p / p.sum(1, keepdims=True)
                values.append(part.argmax(1).astype(np.float64))
            else:
                values.append(part[:, 0])
        return np.stack(values, 1), probabilities


def _single(make: Callable[[int], Any], classifier: Callable[[int], Any] | None = None) -> Callable[..., Completed]:
    """A method with one estimate, by an imputer of scikit-learn.

    Regressions on columns of 0 and 1 cannot impute categories: those of one column add up to 1, so each is predicted
    from the others, which are missing with it. `classifier` then predicts the categories from all other columns, and
    numbers are imputed again given those.
    """

    def method(table: Table, train: np.ndarray, others: list[np.ndarray], seed: int) -> Completed:
        code, sets = OneHot(table), [train, *others]
        imputer = make(seed).fit(code.encode(train))
        done = [code.decode(imputer.transform(code.encode(part))) for part in (sets if classifier else others)]
        if classifier is None or not table.categorical.any():
            return [Imputation(values, values, None, p) for values, p in done[-len(others) :]]
        found = _classified(table, sets, [values for values, _ in done], lambda: classifier(seed))
        known = [
            np.where(table.categorical, _most_probable(part, p), part) for part, p in zip(sets, found, strict=True)
        ]
        imputer = make(seed).fit(code.encode(known[0]))
        last = [code.decode(imputer.transform(code.encode(part)))[0] for part in known[1:]]
        return [Imputation(values, values, None, p) for values, p in zip(last, found[1:], strict=True)]

    return method


def _classified(
    table: Table, sets: list[np.ndarray], completed: list[np.ndarray], classifier: Callable[[], Any]
) -> list[dict[int, np.ndarray]]:
    """Probabilities of categories given the other columns, per set, by classifiers fitted to the first set."""
    found: list[dict[int, np.ndarray]] = [{} for _ in sets]
    for k in np.flatnonzero(table.categorical):
        rest = Table(
            table.name, table.values, table.target, table.names, table.categories[:k] + table.categories[k + 1 :]
        )
        features = [OneHot(rest).encode(np.delete(part, k, 1)) for part in completed]
        rows = ~np.isnan(sets[0][:, k])
        model = classifier().fit(features[0][rows], sets[0][rows, k])
        for p, part in zip(found, features, strict=True):
            p[int(k)] = np.zeros((len(part), len(table.categories[k])))
            p[int(k)][:, model.classes_.astype(int)] = model.predict_proba(part)
    return found


def _most_probable(values: np.ndarray, probabilities: dict[int, np.ndarray]) -> np.ndarray:
    """Values `(n, columns)` whose missing categories are the most probable ones."""
    values = values.copy()
    for k, p in probabilities.items():
        values[:, k] = np.where(np.isnan(values[:, k]), p.argmax(1), values[:, k])
    return values


def _mean(seed: int) -> Any:
    from sklearn.impute import SimpleImputer

    return SimpleImputer()


def _knn(seed: int) -> Any:
    from sklearn.impute import KNNImputer

    return KNNImputer(n_neighbors=5)


def _iterative(seed: int, **options: Any) -> Any:
    from sklearn.experimental import enable_iterative_imputer  # noqa: F401
    from sklearn.impute import IterativeImputer

    return IterativeImputer(random_state=seed, **options)


def _trees(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesRegressor

    forest = ExtraTreesRegressor(n_estimators=40, min_samples_leaf=2, n_jobs=1, random_state=seed)
    return _iterative(seed, estimator=forest, max_iter=6)


def _logistic(seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=500))


def _tree_classifier(seed: int) -> Any:
    from sklearn.ensemble import ExtraTreesClassifier

    return ExtraTreesClassifier(n_estimators=100, min_samples_leaf=2, n_jobs=1, random_state=seed)


def _combined(draws: list[np.ndarray], probabilities: list[dict[int, np.ndarray]]) -> Imputation:
    stacked = np.stack(draws)
    averaged = {k: np.mean([p[k] for p in probabilities], 0) for k in probabilities[0]}
    return Imputation(stacked.mean(0), np.median(stacked, 0), stacked, averaged)


def mice_ridge(table: Table, train: np.ndarray, others: list[np.ndarray], seed: int) -> Completed:
    """MICE with Bayesian linear regression, and logistic regression for categories: every chain draws."""
    code, drawn = OneHot(table), [([], []) for _ in others]
    random = np.random.default_rng(seed)
    for chain in range(DRAWS):
        sets, found = [train, *others], [{} for _ in [train, *others]]
        imputer = _iterative(1000 * seed + chain, sample_posterior=True).fit(code.encode(train))
        if table.categorical.any():
            values = [code.decode(imputer.transform(code.encode(part)))[0] for part in sets]
            found = _classified(table, sets, values, lambda: _logistic(seed))
            picked = [{k: _picked(p, random) for k, p in part.items()} for part in found]
            sets = [_most_probable(part, p) for part, p in zip(sets, picked, strict=True)]
            imputer = _iterative(1000 * seed + chain, sample_posterior=True).fit(code.encode(sets[0]))
        for kept, part, p in zip(drawn, sets[1:], found[1:], strict=True):
            kept[0].append(code.decode(imputer.transform(code.encode(part)))[0])
            kept[1].append(p)
    return [_combined(*kept) for kept in drawn]


def _picked(probabilities: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """One category per row drawn by its probability, `(n, categories)` of 0 and 1."""
    chosen = (probabilities.cumsum(1) < random.random((len(probabilities), 1))).sum(1)
    return np.eye(probabilities.shape[1])[chosen.clip(max=probabilities.shape[1] - 1)]


def mice_forest(table: Table, train: np.ndarray, others: list[np.ndarray], seed: int) -> Completed:
    """MICE with gradient-boosted trees and predictive mean matching (`miceforest`), five chains.

    It is fitted to the rows it completes as well: `impute_new_data` of version 6.0.5 returns its random start. With
    pandas 3 all of its imputations are that, so it needs pandas 2.
    """
    import miceforest

    if int(pd.__version__.split(".")[0]) > 2:
        raise RuntimeError(f"miceforest needs pandas 2, found {pd.__version__}")
    chains, seen = 5, len(others[0])
    assert np.array_equal(others[0], train[:seen], equal_nan=True)
    frame = _frame(table, np.concatenate([train, *others[1:]]))
    # matching fails for categories whose predicted probability is 0 or 1: they are drawn by their probabilities
    matching = {name: "fast" if names else "normal" for name, names in zip(table.names, table.categories, strict=True)}
    kernel = miceforest.ImputationKernel(frame, num_datasets=chains, mean_match_strategy=matching, random_state=seed)
    kernel.mice(3, num_threads=1, verbosity=-1)
    whole = [_codes(table, kernel.complete_data(chain)) for chain in range(chains)]
    parts = [slice(0, seen), *np.split(np.arange(len(train), len(frame)), np.cumsum([len(o) for o in others[1:]])[:-1])]
    done = []
    for part in parts:
        tables = [values[part] for values in whole]
        hot = [{k: np.eye(len(c))[t[:, k].astype(int)] for k, c in enumerate(table.categories) if c} for t in tables]
        done.append(_combined(tables, hot))
    return done


def diffem(table: Table, train: np.ndarray, others: list[np.ndarray], seed: int, **options: Any) -> Completed:
    from diffem.tables import DiffusionImputer

    imputer = DiffusionImputer(random_state=seed, round_integers=False, device="cpu", **options)
    imputer.fit(_frame(table, train))
    done = []
    for part in others:
        mean, median, draws = part.copy(), part.copy(), np.stack([part] * DRAWS)
        found = {k: np.eye(len(c))[np.nan_to_num(part[:, k]).astype(int)] for k, c in enumerate(table.categories) if c}
        for name, gaps in imputer.predict_gaps(_frame(table, part), DRAWS).items():
            k = table.names.index(str(name))
            mean[gaps.rows, k], median[gaps.rows, k], draws[:, gaps.rows, k] = gaps.mean, gaps.median, gaps.draws
            if gaps.probabilities is not None:
                codes = [int(category) for category in gaps.column.categories]
                found[k][gaps.rows] = 0  # of categories that do not occur in the rows of the fit
                found[k][np.ix_(gaps.rows, codes)] = gaps.probabilities
        done.append(Imputation(mean, median, draws, found))
    return done


def _frame(table: Table, values: np.ndarray) -> pd.DataFrame:
    frame = pd.DataFrame(values, columns=list(table.names))
    for name, categories in zip(table.names, table.categories, strict=True):
        if categories:
            codes = frame[name].fillna(-1).astype(int)
            frame[name] = pd.Categorical.from_codes(codes, categories=[str(k) for k in range(len(categories))])
    return frame


def _codes(table: Table, frame: pd.DataFrame) -> np.ndarray:
    return np.stack([frame[name].astype(float).to_numpy() for name in table.names], 1)


METHODS: dict[str, Callable[..., Completed]] = {
    "mean": _single(_mean),
    "knn": _single(_knn),
    "ridge": _single(_iterative, _logistic),
    "trees": _single(_trees, _tree_classifier),
    "mice-ridge": mice_ridge,
    "mice-forest": mice_forest,
    "diffem": diffem,
}


def complete(text: str, table: Table, train: np.ndarray, others: list[np.ndarray], seed: int) -> Completed:
    """Let a method complete tables; `diffem:{"laps": 6}` is diffem with other parameters."""
    name, _, options = text.partition(":")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return METHODS[name](table, train, others, seed, **json.loads(options or "{}"))
