"""Watching a run without clean data: what is measured after every lap, and when to warn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data import Observations
from ..linalg import dot
from ..metrics.evidence import (
    exact_predictive_log_likelihood,
    hide,
    observation_distance,
    predictive_log_likelihood,
)
from ..priors import GaussianPrior, Prior
from ..randomness import Stream
from .expectation import condition_like

if TYPE_CHECKING:
    from ..runs.recipe import Recipe

# Random numbers of their own, the same for every lap: differences between laps are the prior's.
WATCH_LAP = 1 << 20
WATCH_STEPS = 64
EXACT_VALUES = 1024  # measured values per observation up to which a Gaussian's predictions are computed in closed form
PICTURED = 8  # observations the report shows


@dataclass
class Watched:
    metrics: dict[str, float]
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
    seed, metrics = recipe.seed, {}
    samples = prior_samples(prior, recipe, batch)
    if held_out is not None:
        x = posterior_draws(prior, held_out, recipe, batch)
        metrics["heldout_chi2"] = float(torch.stack([held_out.chi2(d) for d in x]).median())
        metrics["expected_chi2"] = 1.0 if isinstance(prior, GaussianPrior) else expected_chi2(held_out, prior.sigma_min)
        partial, hidden = hide(held_out, recipe.watch.hidden, seed)
        if isinstance(prior, GaussianPrior) and int(held_out.counts().max()) <= EXACT_VALUES:
            predicted = exact_predictive_log_likelihood(prior, held_out, hidden)
        else:
            drawn = posterior_draws(prior, partial, recipe, batch)
            predicted = predictive_log_likelihood(drawn, held_out, hidden)
        metrics["predictive_log_likelihood"] = float(predicted)
        metrics["predictive_error"] = predicted.standard_error
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
    posterior = condition_like(prior, obs, recipe.e_step)
    return posterior.sample(k, steps=steps, seed=seed, lap=WATCH_LAP, batch_size=batch, progress=False)


def in_pictures(n: int, held_out: int) -> Tensor:
    """Which of n observations the report shows, up to eight: held-out ones if there are any."""
    train, held = split(n, held_out)
    return (held if len(held) else train)[:PICTURED]


def expected_chi2(obs: Observations, sigma_min: float) -> float:
    """χ² per measured value of draws as they should be: 1, less what their last denoising at σ_min takes away.

    It returns the mean instead of a draw, and with that halves the residual of a value whose noise is as small as σ_min:
    tr Σ_y(Σ_y + σ_min² I)⁻¹ over the number of values. The trace is taken with one vector of random signs per observation, which
    is exact for independent noise.
    """
    index = torch.arange(len(obs), device=obs.y.device)
    signs = Stream(0, "expected chi2").uniform(index, tuple(obs.y.shape[1:])) < 0.5
    z = torch.where(signs, -1, 1).to(obs.y)
    z = z if obs.measured is None else torch.where(obs.measured, z, 0)
    noise = obs.noise
    return float((dot(z, noise.matvec(noise.plus(sigma_min**2).solve(z))) / obs.counts()).mean())


def warnings(history: list[dict[str, Any]], recipe: Recipe) -> list[str]:
    """What the newest lap of `history` should worry about, and what to do."""
    lap, out = history[-1], []
    past = [m["predictive_log_likelihood"] for m in history[:-1] if "predictive_log_likelihood" in m]
    now = lap.get("predictive_log_likelihood")
    if now is not None and past and now < max(past) - recipe.watch.worse:
        out.append(
            f"held-out values are predicted worse than before ({now:.3f} nats per value, best {max(past):.3f}): the prior drifts; "
            "use the best lap (diffem.load(run, lap=k)), train longer per lap, or raise e_step.steps or e_step.iterations"
        )
    chi2 = lap.get("heldout_chi2")
    expected = lap.get("expected_chi2", 1.0)
    if chi2 is not None and not 0.5 * expected < chi2 < 2 * expected:
        out.append(
            f"draws miss their observations: χ² per measured value is {chi2:.2f}, it should be about {expected:.2g}; "
            "raise e_step.steps or e_step.iterations, and check the noise level given with the observations"
        )
    rejected = lap.get("rejected", 0.0)
    # the first lap draws from the Gaussian start, whose tails leave the plausible range by nature
    if lap["lap"] > 1 and rejected > recipe.watch.rejected:
        out.append(
            f"{rejected:.1%} of the draws were rejected: the network is not good enough yet; "
            "raise train.first_steps or train.steps, or e_step.redraws"
        )
    return out
