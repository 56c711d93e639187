"""Watching a run without clean data: what is measured after every lap, and when to warn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data import Observations
from ..metrics.evidence import observation_distance
from ..priors import GaussianPrior, Prior
from .expectation import condition_like
from .held_out import measure_held_out
from .model_check.significance import LAPS_LEVEL, one_sided, two_sided
from .verdict import KEY, difference, measured

if TYPE_CHECKING:
    from ..runs.recipe import Recipe

# Random numbers of their own, the same for every lap: differences between laps are the prior's.
WATCH_LAP = 1 << 20
WATCH_STEPS = 64
PICTURED = 8  # observations the report shows
NARROW, WIDE = 0.8, 0.97  # coverage of 90 % intervals that matters
TOO_WIDE = 0.75  # variance of errors over that of draws that matters


@dataclass
class Watched:
    metrics: dict[str, Any]
    samples: Tensor  # (samples, *event), prior samples
    posterior: Tensor  # (draws, observations shown, *event)


def split(n: int, held_out: int) -> tuple[Tensor, Tensor]:
    """Which of n observations are trained on and which are held out: those are spread evenly, in case the data are sorted."""
    chosen = torch.zeros(n, dtype=torch.bool)
    if held_out:
        chosen[(torch.arange(held_out) * n) // held_out] = True
    return (~chosen).nonzero().flatten(), chosen.nonzero().flatten()


@torch.no_grad()
def watch(
    prior: Prior, held_out: Observations | None, shown: Observations, recipe: Recipe, batch: int | None = None
) -> Watched:
    """Measure a prior on held-out observations (None: on none) and draw what the report shows, `batch` samples at a time."""
    seed = recipe.seed
    metrics: dict[str, Any] = {}
    samples = prior_samples(prior, recipe, batch)
    if held_out is not None:
        draw = partial(posterior_draws, prior, recipe=recipe, batch=batch)
        metrics |= measure_held_out(prior, held_out, draw, recipe.watch.hidden, seed)
    compared = held_out if held_out is not None and len(held_out) >= 64 else shown.informative()
    if compared is not None and len(compared) > 1:
        some = compared[: min(len(samples), len(compared))]
        metrics["observation_distance"] = observation_distance(samples[: len(some)], some, seed=seed)
    return Watched(metrics, samples, posterior_draws(prior, shown[: min(PICTURED, len(shown))], recipe, batch))


@torch.no_grad()
def prior_samples(prior: Prior, recipe: Recipe, batch: int | None = None) -> Tensor:
    """The samples of a lap's prior that the report shows, `(samples, *event)`."""
    count, seed = recipe.watch.samples, recipe.seed
    if isinstance(prior, GaussianPrior):
        z = torch.randn(count, *prior.event_shape, generator=torch.Generator().manual_seed(seed))
        return prior.exact_sample(z.to(prior.mean))
    return prior.sample(count, steps=WATCH_STEPS, seed=seed, batch_size=batch, progress=False)


@torch.no_grad()
def posterior_draws(prior: Prior, obs: Observations, recipe: Recipe, batch: int | None = None) -> Tensor:
    """Posterior draws for every observation, `(draws, n, *event)`, with random numbers that are the same in every lap."""
    k, seed = recipe.watch.draws, recipe.seed
    if isinstance(prior, GaussianPrior):
        return torch.stack([prior.draw_posterior(obs, seed=seed, lap=WATCH_LAP, draw=d) for d in range(k)])
    # Watching must stay cheap beside the lap, whatever the E-step does: few steps of the default sampler.
    steps = min(WATCH_STEPS, recipe.e_step.steps)
    posterior = condition_like(prior, obs, recipe.e_step, own=True)
    return posterior.sample(k, steps=steps, seed=seed, lap=WATCH_LAP, batch_size=batch, progress=False)


def in_pictures(n: int, held_out: int) -> Tensor:
    """Which of n observations the report shows, up to eight: held-out ones if there are any."""
    train, held = split(n, held_out)
    return (held if len(held) else train)[:PICTURED]


def warnings(history: list[dict[str, Any]], recipe: Recipe) -> list[str]:
    """What is probably wrong with the newest lap of `history`, and what to do.

    A measure must be off by enough to matter and by more than chance explains: over all laps of a run, the right
    model is flagged with a probability of `LAPS_LEVEL` at most.
    """
    lap = history[-1]
    level = LAPS_LEVEL / (4 * recipe.laps)
    out = [*_drift(history, recipe.watch.worse, level), *_residuals(lap, level), *_intervals(lap, level)]
    out += _width(lap, level)
    rejected = lap.get("rejected", 0.0)
    # the first lap draws from the Gaussian start, whose tails leave the plausible range by nature
    if lap["lap"] > 1 and rejected > recipe.watch.rejected:
        out.append(
            f"{rejected:.1%} of the draws were rejected: the network is not good enough yet; "
            "raise train.first_steps or train.steps, or e_step.redraws"
        )
    return out


def _drift(history: list[dict[str, Any]], worse: float, level: float) -> list[str]:
    """Held-out values predicted worse than in the best lap: the difference per observation, by Student's t."""
    lap, past = history[-1], measured(history[:-1])
    if not measured([lap]) or not past:
        return []
    best = max(past, key=lambda m: float(m[KEY]))
    found = difference(best, lap)
    if found.loss <= worse or not found.beyond_chance(level):
        return []
    return [
        f"held-out values are predicted worse than in lap {best['lap']}, by {found} nats per value: "
        f"the prior drifts; use that lap (diffem.load(run, lap={best['lap']})), train longer per lap, "
        "or raise e_step.steps or e_step.iterations"
    ]


def _residuals(lap: dict[str, Any], level: float) -> list[str]:
    """Draws that leave residuals of another size than the noise."""
    chi2, expected, z = lap.get("heldout_chi2"), lap.get("expected_chi2", 1.0), lap.get("heldout_chi2_z")
    if chi2 is None or z is None or 0.5 * expected < chi2 < 2 * expected or abs(z) < two_sided(level):
        return []
    what = (
        "draws miss their observations; raise e_step.steps or e_step.iterations, "
        "and check the noise level and the operators"
        if chi2 > expected
        else "draws follow the noise of their observations, or the noise was stated too large"
    )
    return [f"χ² of held-out observations is {chi2:.2f} and should be about {expected:.2g}: {what}"]


def _intervals(lap: dict[str, Any], level: float) -> list[str]:
    """Predictions of hidden values that are too sure of themselves, or not sure enough."""
    inside, error = lap.get("hidden_coverage90"), lap.get("hidden_coverage90_error")
    if inside is None or not error or NARROW <= inside <= WIDE or abs(inside - 0.9) < two_sided(level) * error:
        return []
    what = (
        "posterior draws vary too little; train longer, raise e_step.steps, or check the noise level and the operators"
        if inside < 0.9
        else "posterior draws vary too much, or the noise was stated too large"
    )
    return [f"90 % intervals contain {inside:.0%} ± {error:.0%} of hidden held-out values: {what}"]


def _width(lap: dict[str, Any], level: float) -> list[str]:
    """Draws that are wider than they are wrong; those that are narrower show in the coverage."""
    ratio, z = lap.get("hidden_spread"), lap.get("hidden_spread_z")
    if ratio is None or z is None or ratio > TOO_WIDE or z > -one_sided(level):
        return []
    return [
        f"posterior draws of hidden held-out values have {1 / max(ratio, 1e-3):.2g} times the variance of their errors: draws vary "
        "too much; train longer per lap (train.steps, train.first_steps), or lower train.measured"
    ]
