"""What a data source makes: observations, and the truth behind them where it is known."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .observations import Observations


@dataclass
class Problem:
    """Observations, and where it is known the truth behind them, one x per observation.

    range: where x are images, the two values that are pixel 0 and pixel 255; how evaluation turns samples into pictures.
    """

    obs: Observations
    reference: Tensor | None = None
    range: tuple[float, float] | None = None
    about: str = ""  # what the data are, in a line, with what was estimated from them
