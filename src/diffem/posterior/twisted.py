"""A posterior method as the guide of weighted particles (`samplers/tds.py`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..observations import Observations
from ..priors.base import Prior
from ..samplers.base import Ending, Guide
from .evaluation import Evaluation, GuidedEvaluation, Statistics


@dataclass
class Twist:
    """The functions that weight particles, for rows x_t `(n·P, *event)`.

    Attributes:
        evaluate: The posterior denoiser.
        prior: The prior.
        obs: The observations, one per row.
        counted: The statistics that evaluations are added to.
        probe: (n·P, *measurement). Random signs, see `likelihood.py`.
        iterations: Products with the system matrix that an estimate of the likelihood may take.
    """

    evaluate: Callable[[Tensor, Tensor], Evaluation]
    prior: Prior
    obs: Observations
    counted: Statistics
    probe: Tensor
    iterations: int

    def guide(self, x_t: Tensor, sigma: Tensor) -> Guide:
        """Evaluate the method and its likelihood."""
        evaluation = self.evaluate(x_t, sigma)
        assert isinstance(evaluation, GuidedEvaluation)  # other methods reject the sampler in `Posterior.for_draw`
        log_twist = evaluation.log_likelihood(self.obs, self.probe, self.iterations)
        self.counted.add(evaluation)
        return Guide(evaluation.prior, evaluation.x_hat, log_twist)

    def end(self, x_t: Tensor, sigma: Tensor) -> Ending:
        """Denoise by the prior, for the reason given in `samplers/tds.py`, and compute the likelihood."""
        x = self.prior(x_t, sigma)
        self.counted.add(Evaluation(x))
        return Ending(x, -0.5 * self.obs.noise.mahalanobis(self.obs.residual(x)))
