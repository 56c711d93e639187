"""A posterior method as the target of a sampler: each evaluation is added to the statistics of the draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from ..observations import Observations
from ..priors.base import Prior
from ..samplers import Target
from ..samplers.base import FinalDenoising, Guide
from .evaluation import Evaluation, GuidedEvaluation, Statistics

Evaluate = Callable[[Tensor, Tensor], Evaluation]  # x_t (n, *event), sigma () -> the evaluation


@dataclass
class BatchTarget:
    """The denoisers of one batch of rows x_t `(n, *event)`.

    Attributes:
        evaluate: The posterior denoiser.
        last: The last denoising of a draw (`Posterior.finish`).
        statistics: The statistics that evaluations are added to.
    """

    evaluate: Evaluate
    last: Evaluate
    statistics: Statistics

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """E[x | x_t, y]."""
        evaluation = self.evaluate(x_t, sigma)
        self.statistics.add(evaluation)
        return evaluation.x_hat

    def finish(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """The last denoising."""
        evaluation = self.last(x_t, sigma)
        self.statistics.add(evaluation)
        return evaluation.x_hat

    def target(self) -> Target:
        """The functions that a sampler calls."""
        return Target(self.denoise, self.finish, snapshot=self.statistics.snapshot)


@dataclass
class GuidedBatchTarget(BatchTarget):
    """The functions that weight particles (`samplers/tds.py`), for rows x_t `(n·P, *event)`.

    Attributes:
        prior: The prior.
        obs: The observations, one per row.
        probe: (n·P, *measurement). Random signs, see `likelihood.py`.
        iterations: Products with the system matrix that an estimate of the likelihood may take.
    """

    prior: Prior
    obs: Observations
    probe: Tensor
    iterations: int

    def guide(self, x_t: Tensor, sigma: Tensor) -> Guide:
        """Evaluate the method and its likelihood."""
        evaluation = self.evaluate(x_t, sigma)
        assert isinstance(evaluation, GuidedEvaluation)  # other methods reject the sampler in `Posterior.for_draw`
        log_twist = evaluation.log_likelihood(self.obs, self.probe, self.iterations)
        self.statistics.add(evaluation)
        return Guide(evaluation.prior, evaluation.x_hat, log_twist)

    def end(self, x_t: Tensor, sigma: Tensor) -> FinalDenoising:
        """Denoise by the prior, for the reason given in `samplers/tds.py`, and compute the likelihood."""
        x = self.prior(x_t, sigma)
        self.statistics.add(Evaluation(x))
        return FinalDenoising(x, -0.5 * self.obs.noise.mahalanobis(self.obs.residual(x)))

    def target(self) -> Target:
        return Target(self.denoise, self.finish, self.guide, self.end, self.statistics.snapshot)
