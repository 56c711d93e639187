"""Evaluate a run, without clean data and against clean data."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.compile import compile_network, compiling_pays
from ..core.errors import InputError
from ..files import cifar10
from ..files.arrays import read_array
from ..files.pixels import channels_first, read_npz
from ..metrics import (
    Extractor,
    coverage,
    frechet,
    image_quality,
    load_extractor,
    make_reference,
    mse_unmeasured,
    observation_distance,
    simulate,
    sliced_wasserstein,
    to_uint8,
)
from ..metrics.inception import VARIABLE as EXTRACTOR_VARIABLE
from ..observations import Observations, Problem
from ..observations.precision import in_float32
from ..operators import Channel
from ..priors import DiffusionPrior, Prior
from ..priors.base import known_observations
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS
from .expectation import draw_shard
from .run import load
from .screening import largest_plausible
from .split import evenly_spaced
from .verdict import Lap, choose_lap, verdict

EVALUATION_LAP = 1 << 21  # address of random numbers that no lap uses
BATCH_NUMBERS = 1 << 21  # numbers in a batch of prior samples
SIMULATED = 8192  # largest number of simulated observations; more do not change their distance to the real ones
COMPARED = 2048  # largest number of samples that are compared with their observations


# metrics of a lap that are repeated in the results
REPORTED = (
    *("chi2", "heldout_chi2", "predictive_log_likelihood", "predictive_error", "rejected", "guards"),
    *("simulation_score", "simulation_error", "simulated_distance", "halves_distance"),
)


def posterior_draws(prior: Prior, obs: Observations, recipe: Recipe, draws: int, bound: float) -> Tensor:
    """Draw from the posterior of every observation like the E-step of the run, `(draws, n, *event)`."""
    options = recipe.drawing.independent(draws)
    obs = known_observations(prior, obs).to(prior.mean.device)
    index = torch.arange(len(obs))
    batch = options.batch or prior.batch_for(len(obs))
    prior.prepare(batch, evaluations=math.ceil(len(obs) * draws / batch) * options.steps)
    shard = draw_shard(
        prior, obs, options, index=index, seed=recipe.seed, lap=EVALUATION_LAP, bound=bound, batch_size=batch
    )
    return shard.x.cpu()


def evaluate(
    path: str | Path,
    reference: str | None = None,
    *,
    draws: int = 16,
    observations: int = 2048,
    samples: int = 1024,
    steps: int = DEFAULT_STEPS,
    sampler: str = DEFAULT_SAMPLER,
    batch: int | None = None,
    extractor: str | Path | None = None,
    range: tuple[float, float] | None = None,
    lap: Lap = None,
    source: str | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Evaluate a run.

    Args:
        path: The run folder.
        reference: Clean data: "source" for the true x of a simulated data source, a `.npy` file with samples
            `(n, *event)` or uint8 pixels, a `.npz` file with an array `images`, or a folder or batch of CIFAR-10.
        draws: Posterior draws per observation, used if the true x is known.
        observations: Number of observations with posterior draws, the first ones with measured values.
        samples: Number of prior samples.
        steps: Sampling steps of prior samples.
        sampler: Sampler of prior samples.
        batch: Prior samples per batch.
        extractor: Feature extractor for FID and KID, see `metrics.load_extractor`. It is executed, so it must be named
            here or by DIFFEM_INCEPTION, never by the run.
        range: The values of x that are pixel 0 and pixel 255, if the data source does not specify them.
        lap: Number of the lap, "best", or None for the last.
        source: The function that made the observations, `module:function`, if the recipe names one. It is executed.
        device: Device of the computation.

    Returns:
        The metrics, by name.

    Raises:
        InputError: If an argument is invalid or does not fit the run.
    """
    if range is not None and not -math.inf < range[0] < range[1] < math.inf:
        raise InputError(f"--range must be two finite numbers, the lower first, got {range[0]:g} {range[1]:g}")
    run = RunDir(path)
    recipe, prior = run.recipe(), load(path, lap, device, "recipe")
    history, chosen = run.metrics(), choose_lap(run, lap)
    results: dict[str, Any] = {"run": str(path), "lap": chosen, "best_lap": verdict(history).best}
    results |= {key: history[chosen][key] for key in REPORTED if key in history[chosen]}
    problem = run.problem(source)
    if problem is not None:
        problem = replace(problem, obs=known_observations(prior, in_float32(problem.obs)))
        range = range or problem.range
    # arguments are validated before the long computation
    network = _extractor(extractor, reference, prior.event_shape, range, device)
    truth = None if reference is None else _reference(reference, problem, range)
    if truth is not None and truth.x.shape[1:] != prior.event_shape:
        raise InputError(
            f"--reference must contain samples of shape {prior.event_shape}, got {tuple(truth.x.shape[1:])}"
        )
    x = _samples(prior, samples, steps, sampler, batch)
    if problem is not None:
        some = problem.obs[evenly_spaced(len(problem.obs), min(samples, SIMULATED))].informative()
        if some is not None:
            results["observation_distance"] = observation_distance(x[: len(some)].cpu(), some)
    if truth is None:
        return results
    real = truth.x.to(x)
    some_real = real[evenly_spaced(len(real), len(x))]
    results |= {"sliced_wasserstein": sliced_wasserstein(x, some_real), "frechet": frechet(x, real)}
    if network is not None and range is not None:
        pixels = to_uint8(truth.x, range) if truth.pixels is None else truth.pixels
        results |= image_quality(to_uint8(x, range), make_reference(pixels, network), network)
        results |= {"samples": len(x), "reference_images": len(pixels)}
    if truth.paired and problem is not None and draws > 0:
        rows = (~problem.obs[:observations].empty()).nonzero().flatten().cpu()
        if len(rows) > 0:
            bound = largest_plausible(load(path, 0), recipe.e_step.bound)
            obs = problem.obs[rows]
            results |= _errors(posterior_draws(prior, obs, recipe, draws, bound), truth.x[rows], obs)
    return results


def _errors(draws: Tensor, truth: Tensor, obs: Observations) -> dict[str, float]:
    """Errors and coverage of posterior draws `(draws, n, *event)` against the true x `(n, *event)`."""
    results = {"mse_draw": mse_unmeasured(draws[0], truth, obs)}
    if len(draws) > 1:
        results[f"mse_mean{len(draws)}"] = mse_unmeasured(draws.mean(0), truth, obs)
        inside = coverage(draws, truth)
        results |= {"coverage90": float(inside), "coverage90_error": inside.standard_error}
    return results


def _samples(prior: Prior, n: int, steps: int, sampler: str, batch: int | None) -> Tensor:
    """Draw n prior samples, on the device of the prior."""
    size = batch or max(64, BATCH_NUMBERS // math.prod(prior.event_shape))
    if isinstance(prior, DiffusionPrior) and prior.mean.is_cuda and compiling_pays(math.ceil(n / size) * steps):
        compile_network(prior.network)
    return prior.sample(n, steps=steps, sampler=None if prior.is_exact else sampler, batch_size=min(n, size))


def _extractor(
    extractor: str | Path | None,
    reference: str | None,
    event: tuple[int, ...],
    range: tuple[float, float] | None,
    device: torch.device | str,
) -> Extractor | None:
    """Load the feature extractor for image metrics.

    Raises:
        InputError: If it was requested but cannot be used. If only DIFFEM_INCEPTION names it, the result is then None.
    """
    images = len(event) == 2 or (len(event) == 3 and event[0] in (1, 3))
    if extractor is None:
        usable = EXTRACTOR_VARIABLE in os.environ and reference is not None and images and range is not None
        return load_extractor(None, device) if usable else None
    if reference is None:
        raise InputError("--extractor: image metrics compare with real images; set --reference")
    if not images:
        raise InputError(
            f"--extractor: image metrics need samples of shape (h, w), (1, h, w) or (3, h, w), not {event}"
        )
    if range is None:
        raise InputError(
            "--extractor: the data source of this run does not specify the values of pixel 0 and pixel 255; "
            "set --range LOW HIGH"
        )
    return load_extractor(extractor, device)


@dataclass
class _Truth:
    """Clean data.

    Attributes:
        x: `(n, *event)`. Samples in the scale of the prior.
        paired: Whether sample i is the true x of observation i.
        pixels: `(n, *event)`, uint8. The same as pixels, if the data came as pixels.
    """

    x: Tensor
    paired: bool
    pixels: Tensor | None = None


def _reference(reference: str, problem: Problem | None, range: tuple[float, float] | None) -> _Truth:
    if reference == "source":
        if problem is None or problem.reference is None:
            raise InputError("--reference source: the data source of this run does not provide the true x")
        return _Truth(problem.reference, True)
    data = _read(Path(reference))
    pixels = data if data.dtype == torch.uint8 else None
    if pixels is not None:
        if range is None:
            raise InputError(
                f"--reference {reference} contains pixels, and the data source of this run does not specify the values "
                "of pixel 0 and pixel 255; set --range LOW HIGH"
            )
        data = range[0] + pixels.float() * ((range[1] - range[0]) / 255)
    truth = None if problem is None else problem.reference
    if truth is not None:
        paired = truth.shape == data.shape and torch.equal(truth, data)
    else:
        paired = problem is not None and len(data) == len(problem.obs) and _is_paired(data, problem.obs)
    return _Truth(data, paired, pixels)


def _is_paired(x: Tensor, obs: Observations) -> bool:
    """Whether sample i is the true x of observation i, and not just another set of the same size.

    The test is whether the residual of sample i is smaller than that of sample i + 1 more often than by chance.
    """
    if tuple(x.shape[1:]) != obs.x_shape or len(x) < 2:
        return False
    rows = torch.arange(min(len(x), COMPARED))
    some = obs[rows].to("cpu")
    if isinstance(some.A, Channel):
        features = some.A.features(some.y)
        own, other = (
            (some.A.features(simulate(x[k], some)) - features).flatten(1).norm(dim=1)
            for k in (rows, (rows + 1) % len(x))
        )
    else:
        own, other = some.chi2(x[rows]), some.chi2(x[(rows + 1) % len(x)])
    measured = ~(own.isnan() | other.isnan())  # excludes observations without measured values
    wins, n = int((own < other)[measured].sum()), int(measured.sum())
    return n > 0 and wins >= min(n, n / 2 + math.sqrt(n))  # two standard deviations of a fair coin


def _read(path: Path) -> Tensor:
    """Read clean data from a file or folder: uint8 pixels, or float32 samples."""
    if path.is_dir():
        return cifar10.images(path)
    if path.suffix == ".bin":
        return cifar10.read_batch(path)
    if path.suffix == ".npz":
        return read_npz(path)
    array = read_array(path)
    if array.dtype == np.uint8:
        return channels_first(array, path)
    if array.dtype.kind not in "fiu" or array.ndim < 2 or 0 in array.shape or not np.isfinite(array).all():
        raise InputError(
            f"{path} must contain finite samples (n, *event) or uint8 pixels, got {array.dtype} {array.shape}"
        )
    return torch.from_numpy(array).float()
