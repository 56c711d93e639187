"""Noise without a covariance to compute with: any computation raises an `InputError` that states the reason."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from torch import Tensor

from ..core.errors import InputError
from .covariance import Covariance


class UnusableNoise(Covariance):
    """Takes the place of Σ_y in observations whose noise has no usable covariance. A subclass sets `reason`."""

    powers: ClassVar[dict[str, int]] = {}
    axes: ClassVar[dict[str, int | None]] = {}
    reason: ClassVar[str]  # what is unknown, and what to do

    def refuse(self) -> NoReturn:
        """Raise the error."""
        raise InputError(self.reason)

    def matvec(self, v: Tensor) -> NoReturn:
        self.refuse()

    def solve(self, v: Tensor) -> NoReturn:
        self.refuse()

    def sqrt(self, z: Tensor) -> NoReturn:
        self.refuse()

    def logdet(self, event_shape: tuple[int, ...]) -> NoReturn:
        self.refuse()

    def plus(self, variance: Tensor | float) -> NoReturn:
        self.refuse()

    def restrict(self, measured: Tensor) -> NoReturn:
        self.refuse()

    def eigenvalue_floor(self) -> NoReturn:
        self.refuse()
