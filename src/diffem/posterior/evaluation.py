"""One evaluation of a posterior denoiser, and the statistics of all evaluations of a draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..linalg import Solution
from ..observations import Observations
from ..samplers.base import DrawBatch


@dataclass
class Evaluation:
    """One evaluation of a posterior denoiser and its cost.

    Attributes:
        x_hat: (n, *event). The estimate of E[x | x_t, y].
        solution: The solution of the linear system, if the method solves one.
        forwards: Forward passes of the prior's denoiser.
        vjps: Vector–Jacobian products.
    """

    x_hat: Tensor
    solution: Solution | None = None
    forwards: int = 1
    vjps: int = 0


@dataclass(kw_only=True)
class GuidedEvaluation(Evaluation):
    """An evaluation with a likelihood of x_t, as samplers with `needs_likelihood` use it.

    Without a covariance it is N(y | A x̂, Σ_y).

    Attributes:
        prior: (n, *event). The prior's x̂ = E[x | x_t].
    """

    prior: Tensor

    def log_likelihood(self, obs: Observations, probe: Tensor, iterations: int) -> Tensor:
        """Compute log q(y | x_t) up to a constant per observation, `(n,)`, and count the VJPs that this takes.

        Args:
            obs: The n observations.
            probe: (n, *measurement). Random signs for stochastic estimates.
            iterations: Products with the system matrix that an estimate may take.
        """
        return -0.5 * obs.noise.mahalanobis(obs.residual(self.prior))


@dataclass
class Statistics:
    """The cost of draws and the history of their particles, per sample: tensors `(n,)`, or `(draws, n)`.

    Attributes:
        evaluations: Evaluations of the posterior denoiser.
        forwards: Forward passes of the prior's denoiser.
        vjps: Vector–Jacobian products.
        iterations: Solver iterations, summed over evaluations.
        residuals: Largest relative residual at which a solve ended.
        guards: Directions and eigenvalues that the curvature guard rejected, and solves that diverged; summed over
            evaluations.
        effective: Smallest effective number of particles of any step; 0 for a sampler without particles.
        resamplings: Number of times that the particles were resampled.
    """

    evaluations: Tensor
    forwards: Tensor
    vjps: Tensor
    iterations: Tensor
    residuals: Tensor
    guards: Tensor
    effective: Tensor
    resamplings: Tensor

    @classmethod
    def zeros(cls, n: int, device: torch.device) -> Statistics:
        """Make the statistics of n samples before their first evaluation."""

        def count() -> Tensor:
            return torch.zeros(n, dtype=torch.int64, device=device)

        residuals = torch.zeros(n, dtype=torch.float32, device=device)
        return cls(count(), count(), count(), count(), residuals, count(), torch.zeros_like(residuals), count())

    def add(self, evaluation: Evaluation) -> None:
        """Add an evaluation in place, so that a captured step is counted at every replay."""
        self.evaluations += 1
        self.forwards += evaluation.forwards
        self.vjps += evaluation.vjps
        if evaluation.solution is not None:
            self.iterations += evaluation.solution.iterations
            self.guards += evaluation.solution.guards
            residual = evaluation.solution.residual.to(self.residuals)
            torch.maximum(self.residuals, residual, out=self.residuals)

    def snapshot(self) -> Callable[[], None]:
        """Save the statistics and return a function that restores them in place."""
        saved = self.map(torch.clone)

        def restore() -> None:
            for name in self.__dataclass_fields__:
                getattr(self, name).copy_(getattr(saved, name))

        return restore

    def per_set(self, particles: int, drawn: DrawBatch) -> Statistics:
        """Sum the statistics of particles, `(n · particles,)`, over each set, `(n,)`, and add those of the sampler."""
        total = self.map(lambda t: t.reshape(-1, particles).sum(-1))
        total.residuals = self.residuals.reshape(-1, particles).amax(-1)
        total.effective, total.resamplings = drawn.effective, drawn.resamplings
        return total

    def per_draw(self, draws: int, n: int, picks: int, first: int = 0) -> Statistics:
        """Distribute the statistics of sets, `(sets · n,)`, over draws, `(draws, n)`.

        The cost of a set is counted at the first of its draws that is returned; residuals and the history of the
        particles belong to each of its draws.

        Args:
            draws: The number of draws that are returned.
            n: The number of observations.
            picks: Draws of a set.
            first: The first draw of the first set that is returned.
        """
        sets = self.evaluations.numel() // n
        returned = slice(first, first + draws)
        place = (torch.arange(sets, device=self.evaluations.device) * picks).clamp(min=first)

        def once(t: Tensor) -> Tensor:
            return t.new_zeros(sets * picks, n).index_copy(0, place, t.reshape(sets, n))[returned]

        def each(t: Tensor) -> Tensor:
            return t.reshape(-1, 1, n).expand(-1, picks, -1).flatten(0, 1)[returned]

        out = self.map(once)
        for name in ("residuals", "effective", "resamplings"):
            setattr(out, name, each(getattr(self, name)))
        return out

    @classmethod
    def concatenate(cls, parts: list[Statistics], rows: Tensor) -> Statistics:
        """Join the statistics of several batches.

        Args:
            rows: The rows of all batches, in their order: the place of each of their samples in the result.
        """
        joined = {name: torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__}
        order = rows.argsort().to(joined["evaluations"].device)
        return cls(**joined).map(lambda t: t[order])

    def map(self, function: Callable[[Tensor], Tensor]) -> Statistics:
        """Apply a function to every tensor."""
        return Statistics(**{name: function(getattr(self, name)) for name in self.__dataclass_fields__})
