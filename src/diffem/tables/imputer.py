"""A scikit-learn imputer that draws missing values from their distribution given the other values of a row."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.errors import InputError
from .base import Imputer, require_count
from .calibration import fitted_exponent
from .encoding import Encoding
from .engine import Model
from .frames import as_frame, filled, like
from .gaps import column_gaps, parts, with_more_gaps
from .held_out import HiddenValues
from .predictions import Predictions, predict, probabilities
from .recipe import default_folds, default_laps, default_recipe


@dataclass(kw_only=True, repr=False, eq=False)
class DiffusionImputer(Imputer):
    """Fill the gaps of a table with estimates (`transform`) or with random draws (`sample_posterior`).

    Data frames come back as data frames and arrays as arrays. NaN, None and `pd.NA` are missing values; observed values
    are never changed. Columns hold numbers, integers, Booleans or categories. An imputed value is always one that the
    column can hold: within the range of the observed values, whole if they are whole, a category that was observed. In
    new rows, a category that `fit` has not seen is kept, and counts as missing when the rest of its row is imputed. The
    gaps of a column with a single value are filled with it.

    Args:
        laps: Laps of EM. Default: chosen by the number of rows.
        steps: Training steps per lap. Default: chosen by the number of rows.
        folds: Number of runs of EM, which take turns in drawing. Each holds out a different part of the rows, whose
            hidden values decide which laps are used and how wide draws are. Default: 4 for 40 to 999 rows, otherwise 1,
            which holds out a tenth of the rows.
        draws: Posterior draws per estimate.
        n_imputations: Number of completed tables that `sample_posterior` returns.
        estimate: The estimate of a number in `transform`: the "mean" of the draws, which has the smallest squared
            error, or their "median", which has the smallest absolute error. For categories it is the most probable one.
        columns: The kinds of columns that would not be recognised: a mapping from names to "numeric", "integer",
            "boolean" or "categorical". Columns of arrays are called x0, x1, …
        round_integers: Whether a column of floating-point numbers that are all whole is imputed with whole numbers. If
            not, estimates have smaller errors. Columns of an integer type are always imputed with whole numbers, unless
            `columns` names them as numeric.
        sampling_steps: Sampling steps per draw.
        random_state: Seed of all random numbers.
        device: "cpu" or "cuda". Default: a GPU if there is one.
        recipe: Recipe keys to change, such as `{"train.lr": 5e-4}`.
        out: The run folder; `fit` resumes an interrupted run in it. Default: a temporary folder.
        verbose: Whether to print a line per lap.

    Attributes:
        encoding_: The encoding of the table as a matrix of about normal numbers.
        model_: The learned distribution of its rows, without priors if no column varies.
        exponent_: The exponent of the probabilities of categories, fitted to hidden values of held-out rows.
        seed_: The seed of all random numbers.
        n_features_in_ (int): The number of columns.
        feature_names_in_ (np.ndarray): Their names, if X was a data frame.
    """

    folds: int | None = None
    columns: Mapping[Any, str] | None = None
    round_integers: bool = True

    exponent_: float = field(init=False)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the distribution of the rows of X `(n, columns)`; y is not used."""
        random = self._check_parameters("folds")
        frame = as_frame(X, least_rows=2)
        validate_data(self, X, reset=True, skip_check_array=True)
        unknown = [name for name in self.columns or {} if name not in frame.columns]
        if unknown:
            raise InputError(
                f"columns names {unknown[:5]}, which the table does not have; it has {list(frame.columns)[:20]}"
            )
        self.encoding_ = Encoding(frame, self.columns, self.round_integers)
        z = self.encoding_.encode(frame)
        z = z[~np.isnan(z).all(1)]
        self.model_, self.exponent_ = Model(), 1.0
        if self.encoding_.size:
            self._learn(z, random)
        return self

    def _learn(self, z: np.ndarray, random: np.random.RandomState) -> None:
        places = self.encoding_.places
        folds = min(self.folds or default_folds(len(z)), len(z))
        several = [(with_more_gaps(rows, places, random), held) for rows, held in parts(z, folds, random)]
        rows = len(several[0][0])
        recipe = default_recipe(rows, self.laps or default_laps(rows), self.steps)
        self.model_ = self._learner(recipe, column_gaps(places), self.encoding_.snapped).learn(several)
        if self.model_.held_out is not None:
            self.exponent_ = self._fitted_exponent(self.model_.held_out)

    def _fitted_exponent(self, held: HiddenValues) -> float:
        """Return the exponent of probabilities of maximum likelihood for the hidden categories."""
        found, codes = [], []
        for k, (column, place) in enumerate(zip(self.encoding_.columns, self.encoding_.places, strict=True)):
            if column.is_categorical and place.stop > place.start:
                rows = held.hidden[:, place.start]
                found.append(probabilities(self.encoding_, k, held.drawn[rows]))
                codes.append(self.encoding_.decode(k, held.z[rows]).astype(np.int64))
        return fitted_exponent(found, codes)

    def transform(self, X: Any) -> Any:
        """Fill the gaps of X `(n, columns)` with estimates; the result has the form of X."""
        frame, missing, z = self._read(X)
        found = self._predictions(z, missing, int(self.draws))
        return like(self._filled(frame, missing, {k: p.estimate(self.estimate) for k, p in found.items()}), X)

    def sample_posterior(self, X: Any, n_imputations: int | None = None) -> list[Any]:
        """Return several completed tables whose gaps are filled with different draws, for Rubin's rules.

        Args:
            X: The table, `(n, columns)`.
            n_imputations: The number of tables. Default: the parameter of the imputer.

        Returns:
            The tables, each in the form of X.
        """
        count = self._imputations(n_imputations)
        frame, missing, z = self._read(X)
        found = self._predictions(z, missing, self._draws_for(count))
        return [like(self._filled(frame, missing, {k: p.draws[i] for k, p in found.items()}), X) for i in range(count)]

    def predict_gaps(self, X: Any, draws: int | None = None) -> dict[Hashable, Predictions]:
        """Predict the distribution of the value in every gap, by the name of its column.

        Args:
            X: The table, `(n, columns)`.
            draws: The number of draws per gap. Default: the parameter of the imputer.
        """
        count = self.draws if draws is None else draws
        require_count("draws", count)
        _, missing, z = self._read(X)
        return {p.column.name: p for p in self._predictions(z, missing, int(count)).values()}

    def _read(self, X: Any) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
        """Return the table, the mask of its gaps `(n, columns)`, and the encoded matrix `(n, size)`."""
        check_is_fitted(self, "model_")
        frame = as_frame(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        return frame, frame.isna().to_numpy(), self.encoding_.encode(frame)

    def _predictions(self, z: np.ndarray, missing: np.ndarray, draws: int) -> dict[int, Predictions]:
        """Return the predictions of the columns that have gaps."""
        rows = np.flatnonzero(missing.any(1))
        if not len(rows):
            return {}
        drawn, gaps = self.model_.draw(z[rows], draws, steps=int(self.sampling_steps), seed=self.seed_), missing[rows]
        return {
            int(k): predict(self.encoding_, int(k), drawn[gaps[:, k]], rows[gaps[:, k]], self.exponent_)
            for k in np.flatnonzero(gaps.any(0))
        }

    def _filled(self, frame: pd.DataFrame, missing: np.ndarray, numbers: dict[int, np.ndarray]) -> pd.DataFrame:
        frame = frame.copy()
        for k, values in numbers.items():
            column = self.encoding_.columns[k]
            frame[column.name] = filled(frame[column.name], missing[:, k], column.values(values))
        return frame
