r"""E: draw x ~ q(x | y, A) for every observation, screen the draws, write them shard by shard.

A shard is a range of observations. Its draws depend on the prior, the observations, the seed and the lap alone, so a shard that is
on disk is done, and one that is not can be made again at any time. The Gaussian start is conditioned exactly (Matheron's rule), a
network by the recipe's posterior method and sampler. A lap may renew only a part of the draws (incremental EM, Neal & Hinton 1998): what a
prior gets wrong then reaches the next one diluted, and errors that change sign from lap to lap die out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from ..core.progress import Progress
from ..core.randomness import Stream
from ..observations import Observations
from ..observations.information import information_of
from ..posterior import Posterior
from ..priors import DiffusionPrior, GaussianPrior, Prior
from ..runs.recipe import EStep
from ..samplers import DEFAULT_SAMPLER
from .plausibility import denoising_error
from .screening import Screening, screen, total_chi2

GAUSSIAN_REDRAWS = (
    16  # draws from the Gaussian start cost little, and its tails reach beyond where samples are plausible
)

# Why draws were rejected at first: NaN, unlike their observation, or too large alone; and how many of the last are so after all tries.
CAUSES = ("not_finite", "misfit", "outside", "stuck")


@dataclass
class Shard:
    """The draws of a range of observations, `(draws, n, *event)`, and what making them took."""

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
    last: Callable[[], Tensor] | None = None,
    fresh: float = 1.0,
    batch_size: int | None = None,
    captured: bool = False,
    progress: Progress | None = None,
) -> Shard:
    """Draw, screen, and draw again what was rejected.

    index: `(n,)` addresses of the observations. last: gives the previous lap's draws of this shard, kept where every try failed.
    fresh: the fraction of observations that are drawn for; the others keep the last lap's draws, if there are any.
    """
    posterior = None if isinstance(prior, GaussianPrior) else condition_like(prior, obs, options, own=True)
    sampler_options: dict[str, Any] = dict(options.sampler_options)
    totals = {"guards": 0.0, "evaluations": 0.0, "vjps": 0.0}
    causes = dict.fromkeys(CAUSES, 0)
    together = options.together if posterior is not None else 1

    def attempt(rows: Tensor, first: int, counted: bool) -> Tensor:
        """Draws number `first` and those that come with it for some observations of the shard, `(together, rows, *event)`."""
        draws, done = torch.empty(0), 0  # made with the first batch, so that nothing is copied together in the end
        for part in rows.split(batch_size or len(rows)):
            whole = len(part) == len(obs)
            if posterior is None:
                assert isinstance(prior, GaussianPrior)
                some = obs if whole else obs[part]
                x = prior.draw_posterior(some, seed=seed, lap=lap, index=index[part], draw=first).unsqueeze(0)
            else:
                x, statistics = (posterior if whole else posterior[part]).sample(
                    together,
                    steps=options.steps,
                    sampler=options.sampler,
                    seed=seed,
                    lap=lap,
                    index=index[part],
                    batch_size=batch_size,
                    first_draw=first,
                    return_stats=True,
                    captured=captured,
                    progress=False,
                    **sampler_options,
                )
                totals["guards"] += float(statistics.guards.sum())
                totals["evaluations"] += float(statistics.evaluations.sum())
                totals["vjps"] += float(statistics.vjps.sum())
            if len(part) == len(rows):
                draws = x
            else:
                draws = draws if done else x.new_empty(len(x), len(rows), *x.shape[2:])
                draws[:, done : done + len(part)] = x
            done += len(part)
            if progress is not None and counted:
                progress.advance(together * len(part))
        return draws

    plausible = options.plausible if posterior is not None else None  # the Gaussian start is drawn from exactly

    def screened(x: Tensor, rows: Tensor, limit: float | None = None) -> tuple[Tensor, Screening, float]:
        """Which of the draws `(together, rows, *event)` will do, `(together, rows)`, what they were screened for, and the limit of denoising errors.

        limit: that of an earlier try; these draws' own when absent.
        """
        some = obs if len(rows) == len(obs) else obs[rows]
        found = Screening.stack([screen(draw, some, options.chi2, bound) for draw in x])
        if plausible is None:
            return found.good, found, torch.inf
        errors = torch.stack(
            [denoising_error(prior, draw, index[rows], seed=seed, lap=lap, batch_size=batch_size) for draw in x]
        )
        limit = plausible * float(errors.nanmedian()) if limit is None else limit
        return found.good & (errors <= limit), found, limit

    before = last() if last is not None and fresh < 1 else None
    count = len(obs) if before is None else fresh_count(len(obs), fresh)
    draws, rejected, redrawn, kept, hopeless, chi2, informed = [], 0, 0, 0, 0, 0.0, 0
    for first in range(0, options.draws, together):
        turn = int(index[0]) * options.draws + first  # shards and draws take turns of their own
        rows = Stream(seed, "fresh", lap).permutation(len(obs), step=turn)[:count].sort().values
        some = obs if count == len(obs) else obs[rows]
        empty = some.empty()
        x = attempt(rows, first, counted=True)
        good, found, limit = screened(x, rows)
        rejected += int((~good).sum())
        for name, number in (("not_finite", ~found.finite), ("misfit", found.misfit), ("outside", found.only_outside)):
            causes[name] += int(number.sum())
        for again in range(options.redraws if posterior is not None else GAUSSIAN_REDRAWS):
            bad = (~good).any(0).nonzero().flatten()
            if len(bad) == 0:
                break
            # tries have draw numbers of their own, beyond those of the draws that are kept
            other = attempt(rows[bad.cpu()], options.draws * (again + 1) + first, counted=False)
            mended = screened(other, rows[bad.cpu()], limit)[0] & ~good[:, bad]
            for d, (which, new) in enumerate(zip(mended, other, strict=True)):
                x[d, bad[which]] = new[which]
                good[d, bad[which]] = True
            redrawn += int(mended.sum())
        causes["stuck"] += int((found.only_outside & ~good).sum())
        for d, draw in enumerate(x, first):
            bad = (~good[d - first]).nonzero().flatten()
            if len(bad) and last is not None:
                earlier = last() if before is None else before
                draw[bad] = earlier[d % len(earlier)].to(x)[rows.to(x.device)[bad]]
                kept += len(bad)
            elif len(bad):
                draw[bad] = _fallback(prior, some[bad])
                hopeless += len(bad)
            chi2 += total_chi2(draw, some)
            informed += int((~empty).sum())
            if before is not None:  # a stage may make more draws than the lap before
                draw = before[d % len(before)].to(x).index_copy(0, rows.to(x.device), draw)
            draws.append(draw)
    report = {
        "observations": len(obs),
        "draws": count * options.draws,  # of this lap; the counts and χ² are theirs
        "informed": informed,  # of those, the draws whose observation measures something: χ² is their mean
        "rejected": rejected,
        "redrawn": redrawn,
        "kept": kept,
        "replaced": hopeless,
        **causes,
        "chi2": chi2 / max(informed, 1),
        **totals,
    }
    return Shard(torch.stack(draws) if len(draws) > 1 else draws[0].unsqueeze(0), report)


def fresh_count(n: int, fresh: float) -> int:
    """How many of n observations a lap draws for."""
    return max(1, round(fresh * n))


def summary(reports: list[dict[str, Any]]) -> dict[str, Any]:
    """What making the shards of a lap took: counts as fractions of the lap's draws, χ² as their mean."""
    count = sum(r["draws"] for r in reports)
    metrics: dict[str, Any] = {"draws": count}
    for name in ("rejected", "redrawn", "kept", "replaced", *CAUSES):
        metrics[name] = sum(r.get(name, 0) for r in reports) / count
    informed = [r.get("informed", r["draws"]) for r in reports]
    if any(informed):
        metrics["chi2"] = sum(r["chi2"] * n for r, n in zip(reports, informed, strict=True)) / sum(informed)
    evaluations = sum(r["evaluations"] for r in reports)
    metrics["guards"] = sum(r["guards"] for r in reports) / evaluations if evaluations else 0.0
    return metrics


def given_shard(obs: Observations) -> Shard:
    """The draws of clean observations: themselves."""
    names = ("rejected", "redrawn", "kept", "replaced", *CAUSES, "chi2", "guards", "evaluations", "vjps")
    none = dict.fromkeys(names, 0.0)
    return Shard(obs.y.unsqueeze(0), {"observations": len(obs), "draws": len(obs), "informed": len(obs), **none})


def condition_like(prior: Prior, obs: Observations, options: EStep, *, own: bool = False) -> Posterior:
    """The posterior as a recipe's E-step conditions; the solver's settings are those of mmps, the others have their own.

    A conditional network is used for operators like those it was trained with, and for the run's `own` observations wherever that is possible; in
    other cases mmps takes its place.
    """
    if options.method == "mmps":
        conditioned = prior.posterior(obs, method="mmps", solver=options.solver, iterations=options.iterations)
    elif options.method != "conditional":
        conditioned = prior.posterior(obs, method=options.method)
    elif own and _shown(prior, obs):
        conditioned = prior.posterior(obs, method="conditional", check=False)
    else:
        conditioned = prior.posterior(obs)
    return cast(Posterior, conditioned)


def _shown(prior: Prior, obs: Observations) -> bool:
    """Whether a conditional network can be told about the observations: a blur of which some values are hidden is no blur any more."""
    family = prior.family if isinstance(prior, DiffusionPrior) else None
    return family is None or family.impossible(information_of(obs)) is None


def sampling_like(options: EStep) -> dict[str, Any]:
    """What to draw with for somebody who does not say: the run's weighed particles where it has them, or the default sampler.

    Others that a recipe names are those of the paper, or go with a number of steps.
    """
    if options.sampler != "tds":
        return {"sampler": DEFAULT_SAMPLER}
    return {"sampler": "tds", **options.independent().sampler_options}


def _fallback(prior: Prior, obs: Observations) -> Tensor:
    """With no earlier draw to keep: the posterior mean under the Gaussian start, or the prior's mean where there is none."""
    cov = prior.covariance()
    gaussian = prior if isinstance(prior, GaussianPrior) else None
    if gaussian is None and cov is not None:
        gaussian = GaussianPrior(prior.mean, cov)
    if gaussian is None:
        return prior.mean.expand(len(obs), *prior.event_shape).clone()
    return gaussian.posterior_mean(obs)
