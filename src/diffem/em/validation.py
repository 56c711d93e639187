"""Validation of a recipe against the observations and the registries of other packages, before anything is written."""

from __future__ import annotations

from typing import Any

import torch

from ..core.counting import count_of
from ..core.errors import InputError
from ..linalg import SOLVERS
from ..nn.networks import BUILT_IN, make_network, require_network
from ..observations import Observations
from ..observations.features import is_simulated
from ..observations.levels import level_count
from ..operators import Identity
from ..posterior import METHODS
from ..priors import Prior
from ..runs.recipe import Recipe
from ..runs.schedule import largest
from ..samplers import get_sampler
from .augment import Augment
from .measured_loss import usable_share
from .noise_law import noise_law
from .split import evenly_spaced, split
from .unfinished import earlier_piece

CHECKED = 1024  # number of clean observations that are checked
CLEAN = 0.01  # largest noise level of clean observations, relative to the standard deviation of the data
ENOUGH_DRAWS = 4  # smallest number of draws for a usable predictive log-likelihood


def validate(recipe: Recipe, obs: Observations, start: Prior | None) -> None:
    """Raise an `InputError` if this recipe cannot be run on these observations."""
    for lap in (1, *(stage.lap for stage in recipe.all_stages)):
        _validate_stage(recipe.at(lap), obs)
        if (network := recipe.network_from(lap)) is not None:
            _require_network(network, obs)
    earlier_piece(recipe, recipe.last_lap)
    if recipe.watch.held_out >= len(obs):
        raise InputError(
            f"watch.held_out = {recipe.watch.held_out} leaves none of {count_of(len(obs), 'observation')} for "
            "training; lower it, or set watch.held_out_share"
        )
    if obs.empty()[split(len(obs), recipe.watch.held_out)[0]].all():
        raise InputError(
            "none of the training observations has a measured value, so there is nothing to learn from; a mask must be "
            "True where a value was measured"
        )
    if recipe.e_step.clean:
        if level_count(obs):
            raise InputError(
                "e_step.clean needs samples without noise, but sigma='learn' means noise of unknown level: "
                "leave out one of the two"
            )
        _require_clean(obs)
    if is_simulated(obs):
        _require_channel_laps(recipe)
    if start is not None and start.mean.dtype != torch.float32:
        raise InputError(
            f"a run computes in float32, the prior to start from is in {start.mean.dtype}: pass start.to(torch.float32)"
        )
    if recipe.start == "gaussian" and start is None:
        _require_network(recipe.network.model_dump(), obs)


def _require_network(settings: dict[str, Any], obs: Observations) -> None:
    """Raise an `InputError` for wrong settings, by building the network without allocating memory.

    A network that the user registered is also built in memory and tried on two samples.
    """
    kind, options = settings["kind"], {name: v for name, v in settings.items() if name != "kind"}
    with torch.device("meta"):
        make_network(kind, obs.x_shape, options)
    if kind not in BUILT_IN:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            require_network(make_network(kind, obs.x_shape, options).eval(), kind, obs.x_shape)


def _require_channel_laps(recipe: Recipe) -> None:
    """Raise an `InputError` if a lap would have a network that cannot be conditioned on a channel."""
    for stage in recipe.all_stages:
        if stage.network and recipe.at(stage.lap).train.conditioned_share == 0:
            raise InputError(
                f"lap {stage.lap} has a new network and train.conditioned: 0, but observations of a Channel need a "
                "conditional network in every lap: leave out one of the two"
            )


def _validate_stage(recipe: Recipe, obs: Observations) -> None:
    sampler = get_sampler(recipe.e_step.sampler, **recipe.e_step.sampler_options)
    for name, known in ((recipe.e_step.method, METHODS), (recipe.e_step.solver, SOLVERS)):
        if name not in known:
            raise InputError(f"e_step: unknown method or solver {name!r}; known: {', '.join(known)}")
    if recipe.e_step.method == "conditional" and sampler.needs_likelihood:
        raise InputError(
            f"e_step: sampler {sampler.name} needs a likelihood, which method conditional does not have; use mmps"
        )
    if is_simulated(obs) and recipe.e_step.method != "conditional":
        raise InputError(
            f"e_step.method {recipe.e_step.method} needs observations y = A x + e with Gaussian noise; these come from "
            "a Channel, which can only be simulated: set e_step.method to conditional"
        )
    Augment(recipe.train.augment, obs.x_shape)
    noise_law(recipe.train.noise, recipe.sigma_min, recipe.sigma_max)


def notes(recipe: Recipe, obs: Observations) -> list[str]:
    """Return notes about these observations and how the run treats them."""
    out = []
    empty = int(obs.empty().sum())
    if empty:
        out.append(
            f"no value was measured in {empty} of {count_of(len(obs), 'observation')}: draws for these are samples of "
            "the prior, and all metrics exclude them"
        )
    if recipe.watch.held_out and not is_simulated(obs) and recipe.watch.draws < ENOUGH_DRAWS:
        out.append(
            f"watch.draws is {recipe.watch.draws}: with fewer than {ENOUGH_DRAWS} draws the predictive log-likelihood "
            "is often far too high, its standard error means little, and the best lap is unreliable; use 8 or more"
        )
    _, why_not = usable_share(largest(recipe.train.measured), obs)
    return [*out, why_not] if why_not else out


def _require_clean(obs: Observations) -> None:
    some = obs[evenly_spaced(len(obs), CHECKED)]
    if not isinstance(some.A, Identity):
        raise InputError(
            f"e_step.clean needs observations with the operator Identity, got {some.A}; use Observations.clean(x), or "
            "for the sources digits and cifar10 set data.missing and data.sigma to 0"
        )
    noise = float(some.cov.diagonal(tuple(some.y.shape[1:])).max().sqrt())
    spread = float(some.y.std(0).square().mean().sqrt())
    if noise > CLEAN * spread:
        raise InputError(
            f"e_step.clean needs a noise level of at most {CLEAN:.0%} of the standard deviation of the data, got "
            f"{noise:.2g} and {spread:.2g}: the prior would learn the noise too. Leave e_step.clean out"
        )
