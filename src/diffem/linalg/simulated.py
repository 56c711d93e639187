"""The noise of measurements that can only be simulated (`operators/channel.py`): there is no covariance."""

from __future__ import annotations

from typing import ClassVar, NoReturn

from .unusable import UnusableNoise


class SimulatedNoise(UnusableNoise):
    """Takes the place of Σ_y in observations of a channel; any use of it raises an `InputError`."""

    reason: ClassVar[str] = (
        "the observations of a Channel have no noise covariance, because their noise is part of the simulation: "
        "residuals, χ², likelihoods and exact posteriors need y = A x + e with Gaussian noise. Use the conditional "
        "E-step for draws (e_step.method: conditional) and metrics.simulated_fit for their fit to y"
    )

    def diagonal(self, event_shape: tuple[int, ...]) -> NoReturn:
        self.refuse()

    def scaled(self, factor: float) -> NoReturn:
        self.refuse()
