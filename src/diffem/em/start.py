"""Where a run begins: the Gaussian that explains the observations best, or a prior that is given."""

from __future__ import annotations

import copy
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..core.compile import compile_network
from ..core.errors import InputError
from ..core.randomness import Stream
from ..files.origin import Origin
from ..nn.networks import make_network
from ..observations import Observations
from ..observations.scale import smallest_noise
from ..priors import DiffusionPrior, FitHistory, GaussianPrior, Prior, fit_gaussian
from ..priors.family import Family
from ..priors.files import load_with_description
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..samplers.schedule import lowest_level
from .checkpoint import StartCheckpoint
from .start_plan import plan_start


def gaussian_start(
    recipe: Recipe,
    obs: Observations,
    device: torch.device,
    progress: bool | None = None,
    state_file: Path | None = None,
    origin: Origin | None = None,
) -> tuple[GaussianPrior, dict[str, Any]]:
    """Fitted to some of the observations first, and then to all, where the recipe says so; with what the fit reached.

    state_file: where the state of an interrupted fit is read from and written to; origin: what it names as its origin.
    """
    options, history = recipe.gaussian, FitHistory()
    plan = plan_start(options, obs, device, recipe.seed)
    first = obs if plan.observations is None else obs[plan.observations]
    stages = [(first, plan.rounds)]
    if len(first) < len(obs) and options.final_rounds:
        stages.append((obs, options.final_rounds))
    prior: GaussianPrior | None = None
    with StartCheckpoint(state_file, recipe.train.checkpoint_seconds, origin) as saved:
        for stage in range(saved.stage, len(stages)):
            part, rounds = stages[stage]
            history.log_likelihood.clear()
            prior = fit_gaussian(
                part,
                options.rank,
                rounds=rounds,
                tolerance=plan.tolerance,
                moments=plan.moments,
                held_out=obs[plan.held_out] if plan.held_out is not None and stage == 0 else None,
                start=prior,
                seed=recipe.seed,
                history=history,
                progress=progress,
                checkpoint=partial(saved.keep, stage),
                resume=saved.state if stage == saved.stage else None,
                device=device,
            )
    assert prior is not None
    set_noise_range(prior, recipe, obs)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # a full covariance takes memory that nothing after it needs
    notes: dict[str, Any] = {"rounds": len(history.log_likelihood)}
    if not math.isnan(history.log_likelihood[-1]):
        notes["log_likelihood"] = history.log_likelihood[-1]
    if history.held_out:
        notes["start_held_out"] = max(history.held_out)
    return prior, notes


def set_noise_range(prior: Prior, recipe: Recipe, obs: Observations) -> None:
    """Give the start the recipe's noise levels, in the units of the data; noise far below them lowers the last level."""
    low, high = recipe.sigma_min * prior.scale, recipe.sigma_max * prior.scale
    prior.sigma_min, prior.sigma_max = lowest_level(low, smallest_noise(obs)), high


def given_start(start: Prior | str) -> tuple[Prior, int]:
    """A prior, or the one a path names, a file's or a run's last; and how many laps are behind it."""
    if not isinstance(start, str):
        return copy.deepcopy(start), 0  # its network is trained in place
    file, origin = Path(start), None
    if not file.is_file():
        run = RunDir(file)
        run.recipe()
        lap = run.finished_lap()
        file, origin = run.prior_file(lap), run.origin("prior", lap)
    prior, description = load_with_description(file, origin)
    return prior, int(description.get("lap", 0)) if isinstance(prior, DiffusionPrior) else 0


def denoiser_to_train(before: Prior, start: Prior, recipe: Recipe, family: Family | None = None) -> DiffusionPrior:
    """The prior that M trains: the network of the prior before, or a new one addressed by the seed.

    Args:
        before: The prior of the lap before.
        start: The run's start, on the device; its mean, covariance, scale and noise levels are kept by every lap.
        recipe: The run's recipe.
        family: The operators that a conditional network is trained for; None trains an ordinary one.
    """
    device = start.mean.device
    trained = before if isinstance(before, DiffusionPrior) else None
    network = None if trained is None else trained.network
    settings = recipe.network.model_dump() if trained is None else trained.settings
    if family is not None:
        if settings is None:
            raise InputError(
                "a conditional E-step adds inputs to the network of the start: give DiffusionPrior(..., settings={'kind': ...}), "
                "how it is made"
            )
        if settings.get("shown") != (inputs := shown_inputs(settings, family, before.event_shape)):
            network, settings = None, {**settings, "shown": inputs}
    if network is None:
        assert settings is not None
        network = _made(settings, before.event_shape, recipe.seed, before)
    if device.type == "cuda":
        compile_network(network)
    return DiffusionPrior(
        network.to(device),
        mean=start.mean,
        cov=start.covariance(),
        settings=settings,
        scale=start.scale,
        sigma_min=start.sigma_min,
        sigma_max=start.sigma_max,
        trained_min=recipe.sigma_min * start.scale,
        family=family,
    ).to(device)


def shown_inputs(settings: dict[str, Any], family: Family, event_shape: tuple[int, ...]) -> int:
    """How many inputs the description of an observation takes: channels of an image for a U-Net, numbers otherwise."""
    numbers = math.prod(family.shape)
    return numbers // math.prod(event_shape[-2:]) if settings["kind"] == "unet" else numbers


def _made(settings: dict[str, Any], event_shape: tuple[int, ...], seed: int, before: Prior) -> nn.Module:
    """A network with weights addressed by the seed, or with those of the prior before where it has one: further inputs start at 0."""
    options = {name: value for name, value in settings.items() if name != "kind"}
    with torch.random.fork_rng([]):
        torch.manual_seed(Stream(seed, "network").integer())
        network = make_network(settings["kind"], event_shape, options)
    if isinstance(before, DiffusionPrior):
        network.load_state_dict(
            {n: w for n, w in before.network.state_dict().items() if n.split(".")[-1] != "shown"}, strict=False
        )
    return network
