"""The evaluation after each lap, without clean data, and the arrays that the report shows.

`held_out.py` computes the metrics, and `diagnosis.py` interprets them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..metrics.estimate import clustered_mean
from ..metrics.evidence import observation_distance, simulate
from ..observations import Observations
from ..observations.features import is_simulated
from ..operators import Channel
from ..priors import Prior
from ..priors.base import known_observations
from ..runs.lap_arrays import AXES, read_lap_array, write_lap_arrays
from ..runs.recipe import Recipe
from ..runs.repair import rename_unusable
from ..runs.rundir import RunDir
from .expectation import posterior_from_recipe
from .held_out import measure_held_out, measure_held_out_channel
from .split import PICTURED, evenly_spaced

# the same random numbers in every lap, so that differences between laps are due to the prior
WATCH_LAP = 1 << 20
WATCH_STEPS = 64


@dataclass
class HeldOutEvaluation:
    """The results of the held-out evaluation: metrics, and what the report shows."""

    metrics: dict[str, Any]
    samples: Tensor  # (samples, *event). Prior samples
    posterior: Tensor  # (draws, observations, *event). Posterior draws


@torch.no_grad()
def evaluate_lap(
    prior: Prior, held_out: Observations | None, pictured: Observations, recipe: Recipe, batch: int | None = None
) -> HeldOutEvaluation:
    """Evaluate a prior and make the samples and draws that the report shows.

    Args:
        held_out: The held-out observations; None if there are none.
        pictured: The observations in the pictures.
        batch: The number of samples per batch.
    """
    seed = recipe.seed
    metrics: dict[str, Any] = {}
    samples = prior_samples(prior, recipe, batch)
    if held_out is not None:
        draw = partial(posterior_draws, prior, recipe=recipe, batch=batch)
        if is_simulated(held_out):
            metrics |= measure_held_out_channel(prior, held_out, draw, samples, seed)
        else:
            metrics |= measure_held_out(prior, held_out, draw, recipe.watch.hidden, seed)
    compared = held_out if held_out is not None and len(held_out) >= 64 else pictured.informative()
    if compared is not None and len(compared) > 1:
        some = compared[evenly_spaced(len(compared), len(samples))]
        metrics["observation_distance"] = observation_distance(samples[: len(some)], some, seed=seed)
        metrics |= observation_scale(samples[: len(some)], some, seed)
    return HeldOutEvaluation(
        metrics, samples, posterior_draws(prior, pictured[: min(PICTURED, len(pictured))], recipe, batch)
    )


def observation_scale(x: Tensor, obs: Observations, seed: int) -> dict[str, float]:
    """Compare the scale of simulated and real observations: the ratio of root mean squares, and the z of its logarithm.

    Args:
        x: (n, *event). Prior samples.
        seed: The seed of the simulated noise.
    """
    measured = None if obs.measured is None else obs.measured.expand_as(obs.y)
    features = obs.A.features if isinstance(obs.A, Channel) else None
    both = (obs.y, simulate(x, obs, seed)) if features is None else map(features, (obs.y, simulate(x, obs, seed)))
    real, simulated = (clustered_mean(y.double().square(), measured) for y in both)
    if not min(real, simulated) > 0:
        return {}
    error = math.hypot(real.standard_error / real, simulated.standard_error / simulated)
    ratio = simulated / real
    return {"observation_scale": math.sqrt(ratio), "observation_scale_z": math.log(ratio) / error if error else 0.0}


@torch.no_grad()
def prior_samples(prior: Prior, recipe: Recipe, batch: int | None = None) -> Tensor:
    """Return the prior samples that the report shows, `(samples, *event)`."""
    count, seed = recipe.watch.samples, recipe.seed
    return prior.sample(count, steps=WATCH_STEPS, seed=seed, batch_size=batch, progress=False)


@torch.no_grad()
def posterior_draws(prior: Prior, obs: Observations, recipe: Recipe, batch: int | None = None) -> Tensor:
    """Return posterior draws `(draws, n, *event)`, with the same random numbers in every lap."""
    k, seed = recipe.watch.draws, recipe.seed
    obs = known_observations(prior, obs)
    # the evaluation must be cheap compared with the E-step: few steps of the default sampler
    steps = min(WATCH_STEPS, recipe.e_step.steps)
    posterior = posterior_from_recipe(prior, obs, recipe.e_step, own=True)
    return posterior.sample(k, steps=steps, seed=seed, lap=WATCH_LAP, batch_size=batch, progress=False)


def restore_pictures(
    run: RunDir, lap: int, recipe: Recipe, load: Callable[[], tuple[Prior, int | None]], pictured: Observations | None
) -> None:
    """Recompute `samples.npy` and `posterior.npy` of a finished lap if they are missing or damaged.

    Args:
        load: Returns the lap's prior and the batch size (None: chosen for the device); called only if it is needed.
        pictured: The observations `in_pictures`; None if they are not available.
    """
    recipe, metrics = recipe.at(lap + 1), run.lap_metrics(lap)  # a lap is evaluated with the options of the next lap
    for name in AXES:
        try:
            read_lap_array(run, lap, name, metrics)
            continue
        except InputError as error:
            damage, file = error, run.file(lap, name)
        if name == "posterior.npy" and pictured is None:
            raise InputError(
                f"{file} is missing or damaged; to recompute it, call diffem.fit with this folder and the observations"
            )
        prior, batch = load()
        if name == "posterior.npy" and pictured is not None:
            x = posterior_draws(prior, pictured.to(prior.mean.device, prior.mean.dtype), recipe, batch)
        else:
            x = prior_samples(prior, recipe, batch)
        if file.exists():
            rename_unusable(damage, file)
        files = metrics.get("files", {})
        written = write_lap_arrays(run, lap, {name: x.cpu().numpy()})
        metrics["files"] = {**(files if isinstance(files, dict) else {}), **written}
        run.finish_lap(lap, metrics)
