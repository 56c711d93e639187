"""A scikit-learn imputer: missing values as draws from their distribution given the other values of a row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.errors import InputError
from ..priors import Prior
from .encoding import Encoding
from .engine import default_recipe, draw, hold_out, learn, with_more_gaps
from .estimates import estimate
from .frames import as_frame, like


class DiffusionImputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """Fill the gaps of a table by estimates (`transform`) or several times at random (`sample_posterior`).

    Data frames come back as data frames and arrays as arrays. NaN, None and pandas' NA are missing; values that are
    there are never changed. Columns hold numbers, whole numbers, truth values or categories, and an imputed value is
    always one that the column can hold: within the range of its observed values, whole where they are whole, a category
    that was observed. A category that was never observed in `fit` counts as missing when the rest of its row is
    imputed. A column with a single value is imputed with it.

    Args:
        laps: Laps of EM.
        steps: Training steps in each; by the number of rows if None.
        draws: Posterior draws behind an estimate.
        n_imputations: Completed tables that `sample_posterior` returns.
        estimate: What `transform` takes of the draws of a number: their "mean", which has the least squared error, or
            their "median", which has the least absolute error. Of categories it takes the most frequent one.
        columns: What columns hold where that should not be found from the values: a mapping from names to "numeric",
            "integer", "boolean" or "categorical". Columns of arrays are called x0, x1, …
        round_integers: Whether a column of floating-point numbers that are all whole is imputed with whole numbers. If
            not, estimates have smaller errors. Columns of an integer type are always imputed with whole numbers, unless
            `columns` names them as numeric.
        sampling_steps: Steps of a draw.
        random_state: Seed of all random numbers.
        device: Where to compute: "cpu" or "cuda"; a GPU if there is one when None.
        recipe: Keys of diffem's recipe to change, such as `{"train.lr": 5e-4}`.
        out: A folder for the run behind the fit, which `fit` resumes if it was interrupted; temporary if None.
        verbose: Whether to print a line per lap.

    Attributes:
        encoding_: How the table is made a matrix of about normal numbers.
        priors_: The learned distributions of its rows, of one or two laps; empty if no column varies.
        n_features_in_: The number of columns.
        feature_names_in_: Their names, if X was a data frame.
    """

    def __init__(
        self,
        *,
        laps: int = 12,
        steps: int | None = None,
        draws: int = 24,
        n_imputations: int = 5,
        estimate: str = "mean",
        columns: Mapping[Any, str] | None = None,
        round_integers: bool = True,
        sampling_steps: int = 24,
        random_state: Any = None,
        device: str | None = None,
        recipe: Mapping[str, Any] | None = None,
        out: str | Path | None = None,
        verbose: bool = False,
    ) -> None:
        self.laps = laps
        self.steps = steps
        self.draws = draws
        self.n_imputations = n_imputations
        self.estimate = estimate
        self.columns = columns
        self.round_integers = round_integers
        self.sampling_steps = sampling_steps
        self.random_state = random_state
        self.device = device
        self.recipe = recipe
        self.out = out
        self.verbose = verbose

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn the distribution of the rows of X `(n, columns)`; y is not used."""
        self._check_parameters()
        frame = as_frame(X, least_rows=2)
        validate_data(self, X, reset=True, skip_check_array=True)
        unknown = [name for name in self.columns or {} if name not in frame.columns]
        if unknown:
            raise InputError(
                f"columns names {unknown[:5]}, which the table does not have; it has {list(frame.columns)[:20]}"
            )
        random = check_random_state(self.random_state)
        self.seed_ = int(random.randint(1 << 31))
        self.encoding_ = Encoding(frame, self.columns, self.round_integers)
        z = self.encoding_.encode(frame)
        z = z[~np.isnan(z).all(1)]
        self.priors_: list[Prior] = []
        if self.encoding_.size:
            z, held_out = hold_out(z, random)
            rows = with_more_gaps(z, self.encoding_.places, random)
            recipe = default_recipe(len(rows), self.laps, self.steps)
            self.priors_ = learn(
                rows,
                recipe,
                seed=self.seed_,
                held_out=held_out,
                snapped=self.encoding_.snapped,
                changes=dict(self.recipe or {}),
                out=self.out,
                device=self.device,
                progress=self.verbose,
            )
        return self

    def transform(self, X: Any) -> Any:
        """X `(n, columns)` with its gaps filled by estimates, in the form of X."""
        frame, missing, z = self._read(X)
        numbers = self._numbers(z, missing, self.draws)
        estimates = {k: estimate(self.encoding_.columns[k], drawn, self.estimate) for k, drawn in numbers.items()}
        return like(self._filled(frame, missing, estimates), X)

    def sample_posterior(self, X: Any, n_imputations: int | None = None) -> list[Any]:
        """Several completed tables whose gaps are filled with different draws, for Rubin's rules.

        Args:
            X: The table, `(n, columns)`.
            n_imputations: How many; the parameter of the imputer if None.

        Returns:
            The tables, each in the form of X.
        """
        count = self.n_imputations if n_imputations is None else n_imputations
        if not isinstance(count, int | np.integer) or count < 1:
            raise InputError(f"n_imputations must be a positive integer, got {count!r}")
        frame, missing, z = self._read(X)
        numbers = self._numbers(z, missing, int(count))
        return [
            like(self._filled(frame, missing, {k: drawn[i] for k, drawn in numbers.items()}), X) for i in range(count)
        ]

    def _check_parameters(self) -> None:
        for name in (
            "laps",
            "draws",
            "n_imputations",
            "sampling_steps",
            *(("steps",) if self.steps is not None else ()),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a positive integer, got {value!r}")
        if self.estimate not in ("mean", "median"):
            raise InputError(f"estimate must be 'mean' or 'median', got {self.estimate!r}")

    def _read(self, X: Any) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
        """The table, where it has gaps `(n, columns)`, and the matrix `(n, size)`."""
        check_is_fitted(self, "encoding_")
        frame = as_frame(X)
        validate_data(self, X, reset=False, skip_check_array=True)
        return frame, frame.isna().to_numpy(), self.encoding_.encode(frame)

    def _numbers(self, z: np.ndarray, missing: np.ndarray, draws: int) -> dict[int, np.ndarray]:
        """Draws of the gaps of each column that has some, `(draws, gaps)`, as numbers."""
        rows = np.flatnonzero(missing.any(1))
        if not len(rows):
            return {}
        x = draw(self.priors_, z[rows], draws, steps=self.sampling_steps, seed=self.seed_)
        gaps = missing[rows]
        return {int(k): self.encoding_.decode(int(k), x[:, gaps[:, k]]) for k in np.flatnonzero(gaps.any(0))}

    def _filled(self, frame: pd.DataFrame, missing: np.ndarray, numbers: dict[int, np.ndarray]) -> pd.DataFrame:
        frame = frame.copy()
        for k, values in numbers.items():
            column = self.encoding_.columns[k]
            filled = frame[column.name].copy()
            if column.kind == "numeric" and pd.api.types.is_integer_dtype(filled.dtype):
                filled = filled.astype("Float64")  # named as numeric: values in between are wanted
            filled[missing[:, k]] = column.values(values)
            frame[column.name] = filled
        return frame
