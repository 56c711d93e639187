"""Independent noise whose levels are unknown: one standard deviation per group of observations or of measured values.

The observations carry the groups only. `fit` estimates the levels and computes with the `Isotropic` or `Diagonal`
covariance that `with_levels` returns; any computation that needs the levels before they are known raises an
`InputError`.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from .covariance import Diagonal, Isotropic
from .unusable import UnusableNoise

LEVELS = 1 << 16  # largest number of levels in a file


class UnknownNoise(UnusableNoise):
    """Noise with one unknown level per group.

    Args:
        groups: Group numbers 0 … G−1: `()` for one level in all, `(n,)` for one per observation, or `(*measurement)`
            for one per measured value, the same for all observations.
        count: G, the number of levels. Default: one more than the largest group number.
    """

    reason: ClassVar[str] = (
        "the noise level of these observations is unknown (sigma='learn'): diffem.fit estimates it, and "
        "posteriors of the prior it returns use the estimate; anything else needs sigma as a number"
    )
    axes: ClassVar[dict[str, int | None]] = {"groups": None, "count": 0}

    def __init__(self, groups: Tensor, count: int | None = None, *, per_value: bool = False) -> None:
        super().__init__()
        # floating point, which files of covariances require; whole numbers are exact in it
        self._store("groups", groups.double(), groups.ndim if per_value else 0)
        levels = int(groups.max()) + 1 if count is None else count
        self._store("count", torch.tensor(float(levels), dtype=torch.float64, device=groups.device), 0)

    @classmethod
    def check_tensors(cls, tensors: dict[str, Tensor]) -> None:
        """Raise InputError if the groups from an untrusted file are not whole numbers below their count."""
        groups, levels = tensors["groups"], tensors["count"]
        if levels.ndim or not 0 < levels <= LEVELS or not (groups == groups.floor()).all():
            raise InputError(f"cov.groups must be whole numbers, and cov.count at most {LEVELS}")
        if not ((groups >= 0) & (groups < levels)).all():
            raise InputError("cov.groups must be whole numbers from 0 to cov.count − 1")

    @property
    def count(self) -> int:
        """The number of levels."""
        return int(self._tensors["count"])

    @property
    def is_per_value(self) -> bool:
        """Whether the groups are groups of measured values."""
        return self._shared_ndim["groups"] != 0

    @property
    def groups(self) -> Tensor:
        """The group numbers, `()`, `(n,)` or `(*measurement)`, int64."""
        return self._tensors["groups"].long()

    def group_of_values(self, y: Tensor) -> Tensor:
        """The group number of every value of y `(n, *measurement)`, broadcastable to y."""
        groups = self.groups
        return groups.unsqueeze(0) if self.is_per_value else groups.reshape(-1, *(1,) * (y.ndim - 1))

    def with_levels(self, sigma: Tensor) -> Isotropic | Diagonal:
        """The covariance for known levels. sigma: `(G,)`, standard deviations."""
        if sigma.shape != (self.count,):
            needed = count_of(self.count, "standard deviation")
            raise InputError(f"needed: {needed}, one per group, got shape {tuple(sigma.shape)}")
        variances = sigma.double().square().to(self.groups.device)[self.groups]
        return Diagonal(variances) if self.is_per_value else Isotropic(variances)

    def diagonal(self, event_shape: tuple[int, ...]) -> Tensor:
        """Ones, in place of variances: shapes and precision can be checked before the levels are known."""
        return torch.ones(1, *event_shape, dtype=self._tensors["groups"].dtype, device=self._tensors["groups"].device)
