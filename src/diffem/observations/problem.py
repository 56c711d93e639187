"""The result of a data source: observations, and the true x if it is known."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .observations import Observations


@dataclass
class Problem:
    """Observations, and the true x of each if it is known.

    Attributes:
        range: For images: the values of x that are pixel 0 and pixel 255, for image metrics.
    """

    obs: Observations
    reference: Tensor | None = None
    range: tuple[float, float] | None = None
    about: str = ""  # one line about the data and the quantities that were estimated from them
