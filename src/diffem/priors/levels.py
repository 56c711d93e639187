"""Noise levels that were estimated together with a prior."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..observations import Observations
from ..observations.levels import level_count, with_levels

NORMAL95 = 1.96  # half the width of a 95 % interval, in standard errors


@dataclass(frozen=True)
class NoiseLevels:
    """Estimated standard deviations of the noise, one per group.

    Attributes:
        sigma: Standard deviation of each group.
        error: Standard error of log σ of each group.
        is_determined: Whether the data determine the levels; otherwise they are the largest that the data allow.
    """

    sigma: tuple[float, ...]
    error: tuple[float, ...]
    is_determined: bool

    @classmethod
    def of(cls, sigma: Tensor, error: Tensor, is_determined: bool) -> NoiseLevels:
        """Levels from tensors `(G,)`."""
        return cls(tuple(sigma.double().tolist()), tuple(error.double().tolist()), bool(is_determined))

    def tensor(self) -> Tensor:
        """The standard deviations, `(G,)`, in float64."""
        return torch.tensor(self.sigma, dtype=torch.float64)

    def interval(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """The ends of 95 % intervals. Levels that the data do not determine are bounded from above only."""
        low, high = (
            tuple(s * math.exp(sign * NORMAL95 * e) for s, e in zip(self.sigma, self.error, strict=True))
            for sign in (-1, 1)
        )
        return (low if self.is_determined else (0.0,) * len(low)), high

    def note(self) -> dict[str, Any]:
        """The levels as JSON values."""
        return {**asdict(self), "sigma": list(self.sigma), "error": list(self.error)}

    @classmethod
    def read(cls, note: Any) -> NoiseLevels:
        """Read the result of `note`.

        Raises:
            InputError: If the values are not positive finite numbers, one standard error each.
        """
        try:
            sigma, error = (tuple(float(value) for value in note[name]) for name in ("sigma", "error"))
            determined = note["is_determined"]
        except (TypeError, KeyError, ValueError):
            raise InputError(f"noise levels are described by sigma, error and is_determined, got {note!r}") from None
        good = (
            len(sigma) == len(error) and all(0 < s < math.inf for s in sigma) and all(0 <= e < math.inf for e in error)
        )
        if not good or not sigma or not isinstance(determined, bool):
            raise InputError(f"noise levels must be positive and finite, each with a standard error, got {note!r}")
        return cls(sigma, error, determined)

    def __str__(self) -> str:
        low, high = self.interval()
        if not self.is_determined:
            return "at most " + ", ".join(f"{b:.3g}" for b in high)
        return ", ".join(f"{s:.3g} ({a:.3g} to {b:.3g})" for s, a, b in zip(self.sigma, low, high, strict=True))


def with_known_noise(obs: Observations, levels: NoiseLevels | None) -> Observations:
    """The observations with the estimated noise levels if their own are unknown; otherwise the same observations.

    Raises:
        InputError: If the noise is unknown and no levels were estimated, or another number of them.
    """
    if not (count := level_count(obs)):
        return obs
    if levels is None:
        raise InputError(
            "the noise level of these observations is unknown (sigma='learn'), but this prior was learned with known "
            "noise and contains no estimate: pass sigma as a number"
        )
    if len(levels.sigma) != count:
        raise InputError(
            f"the observations have {count_of(count, 'noise level')}, the prior was learned with {len(levels.sigma)}"
        )
    return with_levels(obs, levels.tensor())
