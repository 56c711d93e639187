r"""The same quantity in two scales: x = scale·u + shift, u as the other library has it, x as the prior does.

With x_t = x + σz and u_t = u + σ'z, a noise level σ here is σ' = σ/scale there, and E[x | x_t] = scale·E[u | u_t] + shift exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ..core.errors import InputError


@dataclass(frozen=True)
class Range:
    """`Range()` changes nothing; `Range.between((0, 1), (-2, 2))` is the usual way to make one."""

    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.shift)):
            raise InputError(f"a range needs a positive scale and a finite shift, got {self.scale} and {self.shift}")

    @classmethod
    def between(cls, theirs: tuple[float, float], ours: tuple[float, float]) -> Self:
        """The change of scale that takes the interval `theirs` to the interval `ours`."""
        if not (theirs[0] < theirs[1] and ours[0] < ours[1]):
            raise InputError(f"a range is (low, high) with low < high, got {theirs} and {ours}")
        scale = (ours[1] - ours[0]) / (theirs[1] - theirs[0])
        return cls(scale, ours[0] - scale * theirs[0])

    def ours(self, u: Tensor) -> Tensor:
        return u if self == Range() else self.scale * u + self.shift

    def theirs(self, x: Tensor) -> Tensor:
        return x if self == Range() else (x - self.shift) / self.scale
