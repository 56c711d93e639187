r"""Affine change of scale between libraries: x = scale·u + shift, with x in diffem and u in the other library.

With x_t = x + σz and u_t = u + σ'z, the noise level σ in diffem is σ' = σ/scale in the other library, and
E[x | x_t] = scale·E[u | u_t] + shift exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

from torch import Tensor

from ..core.errors import InputError


@dataclass(frozen=True)
class Range:
    """The change of scale x = scale·u + shift, usually made by `Range.between((0, 1), (-2, 2))`.

    `Range()` is the identity.
    """

    scale: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if not (self.scale > 0 and math.isfinite(self.scale) and math.isfinite(self.shift)):
            raise InputError(f"a range needs a positive scale and a finite shift, got {self.scale} and {self.shift}")

    @classmethod
    def between(cls, theirs: tuple[float, float], ours: tuple[float, float]) -> Self:
        """The change of scale that maps the interval `theirs` to the interval `ours`."""
        if not (theirs[0] < theirs[1] and ours[0] < ours[1]):
            raise InputError(f"a range is (low, high) with low < high, got {theirs} and {ours}")
        scale = (ours[1] - ours[0]) / (theirs[1] - theirs[0])
        return cls(scale, ours[0] - scale * theirs[0])

    def ours(self, u: Tensor) -> Tensor:
        """Convert to the scale of diffem."""
        return u if self == Range() else self.scale * u + self.shift

    def theirs(self, x: Tensor) -> Tensor:
        """Convert to the scale of the other library."""
        return x if self == Range() else (x - self.shift) / self.scale
