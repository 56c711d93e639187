r"""The E-step: draw x ~ q(x | y, A) for every observation, screen the draws, and redraw or replace the rejected ones.

A shard is a range of observations. Its draws depend only on the prior, the observations, the seed and the lap. A shard
on disk is therefore finished, and a missing shard can be recomputed at any time. Draws from the Gaussian start are
exact (Matheron's rule); draws from a network use the posterior method and the sampler of the recipe. A lap may renew
only a part of the draws (incremental EM, Neal & Hinton 1998). Only this part then carries the errors of the last prior
to the next one, and errors that change sign from lap to lap cancel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

import torch
from torch import Tensor

from ..core.progress import Progress
from ..core.randomness import Stream
from ..observations import Observations
from ..observations.features import is_simulated
from ..posterior import Posterior
from ..priors import GaussianPrior, Prior
from ..runs.recipe import EStep
from ..samplers import DEFAULT_SAMPLER, get_sampler
from .channel_posterior import channel_posterior
from .plausibility import denoising_error
from .screening import Screening, has_chi2, screen, total_chi2
from .shard_report import ShardReport

GAUSSIAN_REDRAWS = 16  # draws of the Gaussian start are cheap, and its tails reach beyond the bound


@dataclass
class Shard:
    """The draws of a range of observations, `(draws, n, *event)`, and the record of how they were made."""

    x: Tensor
    report: dict[str, float] = field(default_factory=dict)


def draw_shard(
    prior: Prior,
    obs: Observations,
    options: EStep,
    *,
    index: Tensor,
    seed: int,
    lap: int,
    bound: float,
    previous: Callable[[], Tensor] | None = None,
    fresh: float = 1.0,
    batch_size: int | None = None,
    captured: bool = False,
    progress: Progress | None = None,
) -> Shard:
    """Make the draws of a shard: draw, screen, redraw, replace.

    Args:
        prior: The prior of the previous lap.
        obs: The observations of the shard.
        options: The E-step options of the recipe.
        index: (n,). The addresses of the observations' random numbers.
        seed: The seed of the run.
        lap: The lap in the addresses of the random numbers.
        bound: The largest accepted |x|.
        previous: Returns the previous lap's draws of this shard, `(draws, n, *event)`. They replace draws that are
            rejected in every attempt.
        fresh: The fraction of the observations that get new draws. The others keep those of `previous`, if given.
        batch_size: The number of observations per batch; the draws do not depend on it.
        captured: Whether the sampling steps are captured in a CUDA graph.
        progress: A progress bar that counts draws.
    """
    shard = _ShardDraws(prior, obs, options, index, seed, lap, bound, batch_size, captured)
    previous = None if previous is None else cache(previous)
    earlier = previous() if previous is not None and fresh < 1 else None
    count = len(obs) if earlier is None else fresh_count(len(obs), fresh)
    shard.report.draws = count * options.draws
    draws: list[Tensor] = []
    for first in range(0, options.draws, shard.together):
        turn = int(index[0]) * options.draws + first  # a different permutation for each shard and draw
        rows = Stream(seed, "fresh", lap).permutation(len(obs), step=turn)[:count].sort().values
        x = shard.draw(rows, first, progress)
        good = shard.screen_and_redraw(x, rows, first)
        for d, draw in enumerate(x, first):
            shard.replace_rejected(draw, ~good[d - first], rows, d, previous)
            if earlier is not None:  # a stage may make more draws per observation than the previous lap
                draw = earlier[d % len(earlier)].to(x).index_copy(0, rows.to(x.device), draw)
            draws.append(draw)
    stacked = torch.stack(draws) if len(draws) > 1 else draws[0].unsqueeze(0)
    return Shard(stacked, shard.report.to_json())


@dataclass
class _ShardDraws:
    """The steps of `draw_shard`, with the same arguments. `rows` are the observations that get new draws.

    Attributes:
        together: The number of draws per observation that are made together, as picks from one particle set.
        report: The record of the shard.
    """

    prior: Prior
    obs: Observations
    options: EStep
    index: Tensor
    seed: int
    lap: int
    bound: float
    batch_size: int | None
    captured: bool

    def __post_init__(self) -> None:
        exact, options = self.prior.is_exact, self.options
        self.posterior = posterior_from_recipe(self.prior, self.obs, options, own=True)
        self.sampling = recipe_sampling(self.prior, options)
        self.together = 1 if exact else options.together
        self.redraws = GAUSSIAN_REDRAWS if exact else options.redraws
        self.plausible = None if exact else options.plausible  # exact draws are plausible under their prior
        self.report = ShardReport(len(self.obs))

    def at(self, rows: Tensor) -> Observations:
        """Return the observations at `rows`."""
        return self.obs if len(rows) == len(self.obs) else self.obs[rows]

    def draw(self, rows: Tensor, first: int, progress: Progress | None = None) -> Tensor:
        """Make the draws number `first` to `first + together − 1`, `(together, rows, *event)`, batch by batch."""
        draws = torch.empty(0)
        # sorted, so that most batches have one last noise level and are not split
        order = self.posterior.last_levels[rows].argsort(stable=True)
        for k, part in enumerate(order.split(self.batch_size or len(rows))):
            part = part.sort().values
            x = self._draw_batch(rows[part], first)
            if len(part) == len(rows):
                draws = x
            else:  # allocated with the first batch, so that the batches need not be concatenated
                draws = draws if k else x.new_empty(len(x), len(rows), *x.shape[2:])
                draws[:, part.to(x.device)] = x
            del x  # the next batch needs this memory
            if progress is not None:
                progress.advance(self.together * len(part))
        return draws

    def _draw_batch(self, rows: Tensor, first: int) -> Tensor:
        posterior = self.posterior if len(rows) == len(self.obs) else self.posterior[rows]
        x, statistics = posterior.sample(
            self.together,
            steps=self.options.steps,
            seed=self.seed,
            lap=self.lap,
            index=self.index[rows],
            batch_size=self.batch_size,
            first_draw=first,
            return_stats=True,
            captured=self.captured,
            progress=False,
            **self.sampling,
        )
        self.report.add_cost(statistics)
        return x

    def screen(self, x: Tensor, rows: Tensor, limit: float | None = None) -> tuple[Tensor, Screening, float]:
        """Screen draws `(together, rows, *event)`.

        Args:
            x: The draws.
            rows: Their observations.
            limit: The largest accepted denoising error. Default: a multiple of the median of these draws.

        Returns:
            Which draws passed, `(together, rows)`, the results of the single tests, and the limit.
        """
        obs = self.at(rows)
        tests = Screening.stack([screen(draw, obs, self.options.chi2, self.bound) for draw in x])
        if self.plausible is None:
            return tests.good, tests, torch.inf
        address: dict[str, Any] = {"seed": self.seed, "lap": self.lap, "batch_size": self.batch_size}
        errors = torch.stack([denoising_error(self.prior, draw, self.index[rows], **address) for draw in x])
        limit = self.plausible * float(errors.nanmedian()) if limit is None else limit
        return tests.good & (errors <= limit), tests, limit

    def screen_and_redraw(self, x: Tensor, rows: Tensor, first: int) -> Tensor:
        """Screen draws and redraw the rejected ones in place; return which are good in the end, `(together, rows)`."""
        good, tests, limit = self.screen(x, rows)
        self.report.add_rejections(tests, good)
        for attempt in range(1, self.redraws + 1):
            bad = (~good).any(0).nonzero().flatten()
            if len(bad) == 0:
                break
            # attempts have draw numbers beyond those of the first attempt
            again = rows[bad.cpu()]
            other = self.draw(again, self.options.draws * attempt + first)
            accepted = self.screen(other, again, limit)[0] & ~good[:, bad]
            for d, (which, new) in enumerate(zip(accepted, other, strict=True)):
                x[d, bad[which]] = new[which]
                good[d, bad[which]] = True
            self.report.redrawn += int(accepted.sum())
            del other, new  # the next attempt needs this memory
        self.report.stuck += int((tests.only_outside & ~good).sum())
        return good

    def replace_rejected(
        self, x: Tensor, rejected: Tensor, rows: Tensor, number: int, previous: Callable[[], Tensor] | None
    ) -> None:
        """Replace the rejected ones of the draws x `(rows, *event)` in place, and add their χ² to the report.

        Args:
            x: The draws.
            rejected: (rows,). Which of them were rejected in every attempt.
            rows: Their observations.
            number: The number of the draw.
            previous: See `draw_shard`.
        """
        obs, bad = self.at(rows), rejected.nonzero().flatten()
        if len(bad) and previous is not None:
            earlier = previous()
            x[bad] = earlier[number % len(earlier)].to(x)[rows.to(x.device)[bad]]
            self.report.kept += len(bad)
        elif len(bad):
            x[bad] = _fallback(self.prior, obs[bad])
            self.report.replaced += len(bad)
        self.report.chi2 += total_chi2(x, obs)
        self.report.informed += int((~obs.empty()).sum()) if has_chi2(obs) else 0


def fresh_count(n: int, fresh: float) -> int:
    """Return the number of observations, out of n, that get new draws in a lap."""
    return max(1, round(fresh * n))


def clean_shard(obs: Observations) -> Shard:
    """Return clean observations as their own draws."""
    report = ShardReport(len(obs), draws=len(obs), informed=len(obs))
    return Shard(obs.y.unsqueeze(0), report.to_json())


def posterior_from_recipe(
    prior: Prior, obs: Observations, options: EStep, *, own: bool = False, exact: bool = True
) -> Posterior:
    """Condition a prior on observations by the posterior method of a recipe.

    A conditional network is used for operators like those it was trained with; mmps replaces it for others. The keys
    `solver` and `iterations` apply to mmps. `channel_posterior.py` conditions on observations of a channel.

    Args:
        prior: The prior.
        obs: The observations.
        options: The E-step options of the recipe.
        own: Whether these are observations of the run. A conditional network is then used whenever that is possible.
        exact: Whether a prior with a closed form is conditioned exactly, instead of by the method of the recipe.
    """
    if is_simulated(obs):
        return channel_posterior(prior, obs, own=own)
    if exact and prior.is_exact:
        conditioned = prior.posterior(obs)
    elif options.method == "mmps":
        conditioned = prior.posterior(obs, method="mmps", solver=options.solver, iterations=options.iterations)
    elif options.method != "conditional":
        conditioned = prior.posterior(obs, method=options.method)
    elif own and prior.supports(obs):
        conditioned = prior.posterior(obs, method="conditional", check=False)
    else:
        conditioned = prior.posterior(obs)
    return cast(Posterior, conditioned)


def recipe_sampling(prior: Prior, options: EStep) -> dict[str, Any]:
    """Return the recipe's sampler and its options as arguments of `sample`; empty for a prior with exact draws."""
    return {} if prior.is_exact else {"sampler": options.sampler, **options.sampler_options}


def default_sampler_options(options: EStep) -> dict[str, Any]:
    """Return the default sampler for posterior draws: that of the run if it weights particles, otherwise the library's.

    Other samplers in recipes reproduce the paper, or are tuned for their number of steps.
    """
    if not get_sampler(options.sampler, **options.sampler_options).needs_likelihood:
        return {"sampler": DEFAULT_SAMPLER}
    return {"sampler": options.sampler, **options.independent().sampler_options}


def _fallback(prior: Prior, obs: Observations) -> Tensor:
    """Return the posterior mean under the Gaussian start, or the prior mean if the prior has no covariance."""
    cov = prior.covariance()
    if cov is None or is_simulated(obs):
        return prior.mean.expand(len(obs), *prior.event_shape).clone()
    return GaussianPrior(prior.mean, cov).posterior_mean(obs)
