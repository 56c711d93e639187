"""The noise of measurements that are known by simulation only (`operators/channel.py`): there is no covariance."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from torch import Tensor

from ..core.errors import InputError
from .covariance import Covariance


class SimulatedNoise(Covariance):
    """The place of Σ_y in observations of a channel. Any computation with it raises an `InputError`."""

    powers: ClassVar[dict[str, int]] = {}
    axes: ClassVar[dict[str, int | None]] = {}

    def _refuse(self) -> NoReturn:
        raise InputError(
            "the observations of a Channel have no noise covariance, because their noise is part of the simulation: "
            "residuals, χ², likelihoods and exact posteriors need y = A x + e with Gaussian noise. Use the conditional "
            "E-step for draws (e_step.method: conditional) and metrics.simulated_fit for their fit to y"
        )

    def matvec(self, v: Tensor) -> NoReturn:
        self._refuse()

    def solve(self, v: Tensor) -> NoReturn:
        self._refuse()

    def sqrt(self, z: Tensor) -> NoReturn:
        self._refuse()

    def logdet(self, event_shape: tuple[int, ...]) -> NoReturn:
        self._refuse()

    def diagonal(self, event_shape: tuple[int, ...]) -> NoReturn:
        self._refuse()

    def plus(self, variance: Tensor | float) -> NoReturn:
        self._refuse()

    def scaled(self, factor: float) -> NoReturn:
        self._refuse()

    def restrict(self, measured: Tensor) -> NoReturn:
        self._refuse()

    def eigenvalue_floor(self) -> NoReturn:
        self._refuse()
