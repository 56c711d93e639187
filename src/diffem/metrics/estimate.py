"""A number with its standard error."""

from __future__ import annotations

import math

from torch import Tensor


class Estimate(float):
    """A float with a standard error, `value.standard_error`; NaN if that is unknown."""

    standard_error: float

    def __new__(cls, value: float, standard_error: float = math.nan) -> Estimate:
        self = super().__new__(cls, value)
        self.standard_error = standard_error
        return self

    def z(self, expected: float = 0.0) -> float:
        """The deviation from an expected value in standard errors; 0 if the standard error is 0 or unknown."""
        return (float(self) - expected) / self.standard_error if self.standard_error > 0 else 0.0

    def __str__(self) -> str:
        return f"{float(self):.4g} ± {self.standard_error:.2g}"

    def __repr__(self) -> str:
        return f"Estimate({float(self)!r}, standard_error={self.standard_error!r})"


def clustered_mean(values: Tensor, selected: Tensor | None = None) -> Estimate:
    r"""Mean of the selected values. Observations are independent, but the values of one observation are not.

    With S_i the sum and M_i the number of selected values of observation i, the mean is the ratio s = Σ S_i / Σ M_i,
    and to first order its variance is n/(n − 1) Σ (S_i − s M_i)² / (Σ M_i)². Observations without a selected value are
    ignored.

    Args:
        values: Shape `(n, ...)`.
        selected: Boolean, shape `(n, ...)`; all values when None.

    Returns:
        The mean and its standard error: NaN without any value, and a standard error of NaN for a single observation.
    """
    values = values.double().flatten(1)
    if selected is None:
        sums, counts = values.sum(1), values.new_full((len(values),), values.shape[1])
    else:
        selected = selected.expand(len(values), *selected.shape[1:]).flatten(1)
        sums, counts = values.where(selected, 0).sum(1), selected.double().sum(1)
    n, total = int((counts > 0).sum()), float(counts.sum())
    if n == 0:
        return Estimate(math.nan)
    mean = float(sums.sum()) / total
    if n == 1:
        return Estimate(mean)
    spread = float((sums - mean * counts).square().sum()) * n / (n - 1)
    return Estimate(mean, math.sqrt(spread) / total)
