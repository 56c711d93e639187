"""The prior of lap 0, and the network that a lap trains."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
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
from ..observations.features import is_simulated
from ..priors import DiffusionPrior, FitHistory, GaussianPrior, Prior, fit_channel_gaussian, fit_gaussian
from ..priors.family import Family
from ..priors.files import load_with_description
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from .checkpoint import StartCheckpoint
from .exports import cost as cost_of
from .exports import is_export, read_card
from .exports import load as load_export
from .start_plan import plan_start, with_possible_rank
from .totals import Totals, totals


@dataclass(frozen=True)
class Fitting:
    """Where the Gaussian start is fitted, and where an interrupted fit is saved.

    Attributes:
        device: The device.
        progress: Whether to show progress bars.
        state_file: The checkpoint of an interrupted fit; None for none.
        origin: The run that the checkpoint belongs to.
    """

    device: torch.device
    progress: bool | None = None
    state_file: Path | None = None
    origin: Origin | None = None


def gaussian_start(recipe: Recipe, obs: Observations, fitting: Fitting) -> tuple[GaussianPrior, dict[str, Any]]:
    """Fit the Gaussian start, first to some of the observations and then, if the recipe requires it, to all.

    Args:
        recipe: The recipe.
        obs: The training observations.
        fitting: The device and the checkpoint.

    Returns:
        The prior, and metrics of the fit.
    """
    options, history, device = with_possible_rank(recipe.gaussian, obs), FitHistory(), fitting.device
    if is_simulated(obs):
        channel = fit_channel_gaussian(obs, options.rank, seed=recipe.seed)
        set_noise_range(channel, recipe)
        return channel, {}
    plan = plan_start(options, obs, device, recipe.seed)
    first = obs if plan.observations is None else obs[plan.observations]
    stages = [(first, plan.rounds)]
    if len(first) < len(obs) and options.final_rounds:
        stages.append((obs, options.final_rounds))
    prior: GaussianPrior | None = None
    with StartCheckpoint(fitting.state_file, recipe.train.checkpoint_seconds, fitting.origin) as saved:
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
                progress=fitting.progress,
                checkpoint=partial(saved.keep, stage),
                resume=saved.state if stage == saved.stage else None,
                device=device,
            )
    assert prior is not None
    set_noise_range(prior, recipe)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # releases the memory of the fit
    notes: dict[str, Any] = {"rounds": len(history.log_likelihood)}
    if not math.isnan(history.log_likelihood[-1]):
        notes["log_likelihood"] = history.log_likelihood[-1]
    if history.held_out:
        notes["start_held_out"] = max(history.held_out)
    return prior, notes


def set_noise_range(prior: Prior, recipe: Recipe) -> None:
    """Set the diffusion noise levels of the recipe in data units."""
    prior.sigma_min, prior.sigma_max = recipe.sigma_min * prior.scale, recipe.sigma_max * prior.scale


def load_start(start: Prior | str) -> tuple[Prior, Totals]:
    """Return a given prior, or that of a file, an export or the last lap of a run, and the cost of its training."""
    if not isinstance(start, str):
        return copy.deepcopy(start), Totals()  # the copy is trained in place
    path = Path(start)
    if path.is_file():
        prior, description = load_with_description(path)
        cost = Totals(int(description.get("lap", 0)))
    elif is_export(path):
        prior, cost = load_export(path), cost_of(read_card(path), str(path))
    else:
        run = RunDir(path)
        recipe, lap = run.recipe(), run.finished_lap()
        prior = load_with_description(run.prior_file(lap), run.origin("prior", lap))[0]
        cost = totals(run.metrics(), recipe)
    return prior, cost if isinstance(prior, DiffusionPrior) else Totals()


def is_other_network(before: Prior, new_settings: dict[str, Any] | None) -> bool:
    """Whether a stage requires another network than that of the previous lap; new_settings: `Recipe.network_from`."""
    settings = before.settings if isinstance(before, DiffusionPrior) else None
    if new_settings is None or settings is None:
        return new_settings is not None
    return {name: value for name, value in settings.items() if name != "shown"} != new_settings


def is_conditional(before: Prior, recipe: Recipe, lap: int) -> bool:
    """Whether the network of a lap is conditional: a new network that never receives an operator is not."""
    return not is_other_network(before, recipe.network_from(lap)) or recipe.at(lap).train.conditioned_share > 0


def denoiser_to_train(
    before: Prior,
    start: Prior,
    recipe: Recipe,
    family: Family | None = None,
    new_settings: dict[str, Any] | None = None,
) -> DiffusionPrior:
    """Return the prior that the M-step trains, with the network of the previous lap or a new one.

    Args:
        before: The prior of the previous lap.
        start: The prior of lap 0, on the device. All laps use its mean, covariance, scale and noise levels.
        recipe: The recipe.
        family: The operators that a conditional network is trained for; None for an unconditional network.
        new_settings: The settings of the network, if a stage changes them; otherwise None.
    """
    device = start.mean.device
    trained = before if isinstance(before, DiffusionPrior) else None
    network = None if trained is None else trained.network
    settings = recipe.network.model_dump() if trained is None else trained.settings
    if is_other_network(before, new_settings):
        network, settings = None, new_settings
    if family is not None:
        if settings is None:
            raise InputError(
                "a conditional E-step adds inputs to the network of the prior to start from, so its configuration is "
                "needed: DiffusionPrior(..., settings={'kind': ...})"
            )
        if settings.get("shown") != (inputs := shown_inputs(settings, family, before.event_shape)):
            network, settings = None, {**settings, "shown": inputs}
    if network is None:
        assert settings is not None
        network = _new_network(settings, before.event_shape, recipe.seed, before)
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
    """Return the number of inputs that describe an observation: channels for a U-Net, numbers otherwise."""
    numbers = math.prod(family.shape)
    return numbers // math.prod(event_shape[-2:]) if settings["kind"] == "unet" else numbers


def _new_network(settings: dict[str, Any], event_shape: tuple[int, ...], seed: int, before: Prior) -> nn.Module:
    """Return a new network: with the weights of the previous prior if they have the same shapes, else random ones."""
    options = {name: value for name, value in settings.items() if name != "kind"}
    with torch.random.fork_rng([]):
        torch.manual_seed(Stream(seed, "network").integer())
        network = make_network(settings["kind"], event_shape, options)
    if isinstance(before, DiffusionPrior):
        old, new = (_own_weights(n) for n in (before.network, network))
        # compared in order, because dropout layers shift the names
        if [w.shape for w in old.values()] == [w.shape for w in new.values()]:
            network.load_state_dict(dict(zip(new, old.values(), strict=True)), strict=False)
    return network


def _own_weights(network: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of a network, except those of the inputs that describe an observation."""
    return {name: w for name, w in network.state_dict().items() if name.split(".")[-1] != "shown"}
