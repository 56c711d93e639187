"""Twisted draws of a posterior: the method as guide and twist, P rows per draw, the draws' statistics."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.progress import Progress
from ..core.randomness import Stream
from ..priors.base import evaluation_mode
from ..samplers.tds import TDS, Ended, Guide, draw_weighted
from .base import Evaluation, Posterior, Statistics
from .likelihood import log_likelihood
from .solving import SolvingPosterior


@dataclass
class Twisted:
    """A posterior method as the guide of a draw; everything has one row per particle.

    counted: takes the statistics. probe: `(n·P, *measurement)` of ±1, and iterations: see `likelihood.py`.
    """

    posterior: Posterior
    counted: Statistics
    probe: Tensor
    iterations: int

    def guide(self, x_t: Tensor, sigma: Tensor) -> Guide:
        evaluation = self.posterior.evaluate(x_t, sigma)
        log_twist = log_likelihood(evaluation, self.posterior.obs, self.probe, self.iterations)
        self.counted.add(evaluation)
        assert evaluation.prior is not None
        return Guide(evaluation.prior, evaluation.x_hat, log_twist)

    def finish(self, x_t: Tensor, sigma: Tensor) -> Ended:
        """The prior's last denoising, and the likelihood of where it ends: see `samplers/tds.py` for why it is the prior's."""
        obs, x = self.posterior.obs, self.posterior.prior(x_t, sigma)
        self.counted.add(Evaluation(x))
        return Ended(x, -0.5 * obs.noise.mahalanobis(obs.residual(x)))


def sample_twisted(
    posterior: Posterior,
    sampler: TDS,
    draws: int,
    steps: int,
    seed: int,
    *,
    lap: int,
    index: Tensor,
    batch_size: int | None,
    first_draw: int,
    captured: bool,
    progress: bool | None,
) -> tuple[Tensor, Statistics]:
    """`draws` draws for each of n observations, `(draws·n, *event)`, and their statistics; arguments as in `Posterior.sample`.

    batch_size counts particles, for they are what fills the device; particles of a set stay together. Draws d with the same d // picks are of one
    set, and first_draw begins one; what it took is counted at the first of them.
    """
    n, count = len(posterior), sampler.particles
    first_set, sets = first_draw // sampler.picks, -(-draws // sampler.picks)
    sigmas, stream = posterior.sigmas(steps), Stream(seed, "posterior", lap)
    prior = posterior.prior
    at_once = max(1, (batch_size or prior.batch_for(sets * n * count)) // count)
    measurement, iterations = tuple(posterior.obs.y.shape[1:]), 1
    if isinstance(posterior, SolvingPosterior):
        iterations = posterior.iterations
    parts, statistics = [], []
    with (
        evaluation_mode(prior),
        Progress("posterior draws", sets * n * count * steps, "particle steps", progress) as bar,
    ):
        for row in torch.arange(sets * n).split(at_once):
            some = posterior[(row % n).repeat_interleave(count)].for_draw(sampler, steps)
            counted = Statistics.zeros(len(row) * count, prior.mean.device)
            address, number = index[row % n].to(prior.mean.device), (first_set + row // n).to(prior.mean.device)
            u = Stream(seed, "posterior probe", lap).uniform(address, measurement, draw=number)
            probe = torch.where(u < 0.5, -1, 1).to(prior.mean).repeat_interleave(count, 0)
            twisted = Twisted(some, counted, probe, iterations)
            weighted = draw_weighted(
                twisted.guide,
                twisted.finish,
                prior.mean,
                address,
                sigmas,
                sampler,
                stream,
                draws=number,
                progress=bar,
                captured=captured,
                bookmark=counted.bookmark,
            )
            parts.append(weighted.x)
            gathered = counted.map(lambda t: t.reshape(-1, count).sum(-1))
            gathered.residuals = counted.residuals.reshape(-1, count).amax(-1)
            gathered.effective, gathered.resamplings = weighted.effective.float(), weighted.resamplings
            statistics.append(gathered)
    # (sets·n, picks, *event) → draw by draw
    x = torch.cat(parts).unflatten(0, (sets, n)).movedim(2, 1).flatten(0, 1)[:draws]
    return x.flatten(0, 1), _by_draw(Statistics.concatenate(statistics), draws, n, sampler.picks)


def _by_draw(total: Statistics, draws: int, n: int, picks: int) -> Statistics:
    """Statistics of sets, `(sets·n,)`, as of draws: what a set took counts at its first draw, what became of its particles at each."""

    def first(t: Tensor) -> Tensor:
        return torch.cat([t.reshape(-1, 1, n), t.new_zeros(len(t) // n, picks - 1, n)], 1).flatten()[: draws * n]

    def each(t: Tensor) -> Tensor:
        return t.reshape(-1, 1, n).expand(-1, picks, -1).flatten()[: draws * n]

    out = total.map(first)
    out.residuals, out.effective, out.resamplings = (
        each(t) for t in (total.residuals, total.effective, total.resamplings)
    )
    return out
