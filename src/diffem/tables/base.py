"""The common part of the two imputers: parameters, their checks, and the call of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..core.errors import InputError
from .encoding import Encoding
from .engine import Learner, Model
from .gaps import Gaps
from .held_out import Snap


@dataclass(kw_only=True, repr=False, eq=False)  # scikit-learn finds the parameters in the signature of __init__
class Imputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """The parameters that both imputers have; see `DiffusionImputer`."""

    laps: int | None = None
    steps: int | None = None
    draws: int = 24
    n_imputations: int = 5
    estimate: str = "mean"
    sampling_steps: int = 24
    random_state: Any = None
    device: str | None = None
    recipe: Mapping[str, Any] | None = None
    out: str | Path | None = None
    verbose: bool = False

    encoding_: Encoding = field(init=False)
    model_: Model = field(init=False)
    seed_: int = field(init=False)

    def _check_parameters(self, *more: str) -> np.random.RandomState:
        """Check the parameters, including the optional positive integers in `more`, and set the seed."""
        for name in ("draws", "n_imputations", "sampling_steps"):
            require_count(name, getattr(self, name))
        for name in ("laps", "steps", *more):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name))
        if self.estimate not in ("mean", "median"):
            raise InputError(f"estimate must be 'mean' or 'median', got {self.estimate!r}")
        try:
            random = check_random_state(self.random_state)
        except ValueError as error:
            raise InputError(f"random_state, the seed: {error}; got {self.random_state!r}") from None
        self.seed_ = int(random.randint(1 << 31))
        return random

    def _learner(self, recipe: dict[str, Any], gaps: Gaps, snap: Snap) -> Learner:
        return Learner(
            recipe,
            seed=self.seed_,
            gaps=gaps,
            snap=snap,
            numeric=self.encoding_.numeric,
            changes=dict(self.recipe or {}),
            out=self.out,
            device=self.device,
            progress=self.verbose,
        )

    def _imputations(self, n_imputations: int | None) -> int:
        """Return the number of completed versions to make, after checks."""
        check_is_fitted(self, "model_")
        count = self.n_imputations if n_imputations is None else n_imputations
        require_count("n_imputations", count)
        return int(count)

    def _draws_for(self, count: int) -> int:
        """Return the number of draws for `count` imputations: at least `draws` if calibration needs their mean."""
        return max(count, int(self.draws)) if np.any(np.asarray(self.model_.spread) != 1) else count


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Raise InputError unless the value of a parameter is an integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise InputError(f"{name} must be {wanted}, got {value!r}")
