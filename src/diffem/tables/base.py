"""What the imputers of tables and of series have in common: parameters, their checks, and how they are fitted."""

from __future__ import annotations

from collections.abc import Mapping
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


class Imputer(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    """The parameters that both imputers take; see `DiffusionImputer`."""

    encoding_: Encoding
    model_: Model
    seed_: int

    def __init__(
        self,
        *,
        laps: int | None,
        steps: int | None,
        draws: int,
        n_imputations: int,
        estimate: str,
        sampling_steps: int,
        random_state: Any,
        device: str | None,
        recipe: Mapping[str, Any] | None,
        out: str | Path | None,
        verbose: bool,
    ) -> None:
        self.laps = laps
        self.steps = steps
        self.draws = draws
        self.n_imputations = n_imputations
        self.estimate = estimate
        self.sampling_steps = sampling_steps
        self.random_state = random_state
        self.device = device
        self.recipe = recipe
        self.out = out
        self.verbose = verbose

    def _check_parameters(self, *more: str) -> np.random.RandomState:
        """Check the parameters, those in `more` as positive integers too, and set the seed."""
        for name in ("laps", "steps", "draws", "n_imputations", "sampling_steps", *more):
            value = getattr(self, name)
            if value is not None or name in ("draws", "n_imputations", "sampling_steps"):
                require_count(name, value)
        if self.estimate not in ("mean", "median"):
            raise InputError(f"estimate must be 'mean' or 'median', got {self.estimate!r}")
        random = check_random_state(self.random_state)
        self.seed_ = int(random.randint(1 << 31))
        return random

    def _learner(self, recipe: dict[str, Any], gaps: Gaps, snap: Snap) -> Learner:
        return Learner(
            recipe,
            self.seed_,
            gaps,
            snap,
            self.encoding_.numeric,
            dict(self.recipe or {}),
            self.out,
            self.device,
            self.verbose,
        )

    def _imputations(self, n_imputations: int | None) -> int:
        """How many completed versions to return, checked."""
        check_is_fitted(self, "model_")
        count = self.n_imputations if n_imputations is None else n_imputations
        require_count("n_imputations", count)
        return int(count)

    def _draws_for(self, count: int) -> int:
        """Draws to make for so many imputations: as many as an estimate has, whose mean is the centre of the spread."""
        return max(count, int(self.draws)) if np.any(np.asarray(self.model_.spread) != 1) else count


def require_count(name: str, value: Any, least: int = 1) -> None:
    """Raise InputError unless the value of a parameter is an integer of at least `least`."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        wanted = "a positive integer" if least == 1 else f"an integer of at least {least}"
        raise InputError(f"{name} must be {wanted}, got {value!r}")
