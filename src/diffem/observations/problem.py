"""The result of a data source: observations, and the true x if they are known."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .observations import Observations


@dataclass
class Problem:
    """Observations, and the true x if they are known.

    Attributes:
        obs: The observations.
        reference: `(n, *event)`. The true x of each observation, if known.
        range: For images, the values of x that are pixel 0 and pixel 255.
        about: One line that describes the data and the quantities that were estimated from them.
    """

    obs: Observations
    reference: Tensor | None = None
    range: tuple[float, float] | None = None
    about: str = ""
