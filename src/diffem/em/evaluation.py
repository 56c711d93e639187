"""Measuring a finished run: what its observations say, and what clean data say where there are any."""

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
from ..files.pixels import channels_first, read_npz
from ..files.writing import read_array
from ..metrics import (
    Extractor,
    coverage,
    frechet,
    image_quality,
    load_extractor,
    make_reference,
    mse_unmeasured,
    observation_distance,
    sliced_wasserstein,
    to_uint8,
)
from ..metrics.inception import VARIABLE as EXTRACTOR_VARIABLE
from ..observations import Observations, Problem
from ..observations.precision import in_float32
from ..priors import DiffusionPrior, GaussianPrior, Prior
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS
from .expectation import draw_shard
from .run import load
from .screening import largest_plausible
from .verdict import Lap, choose_lap, verdict

EVALUATION_LAP = 1 << 21  # random numbers of their own
BATCH_NUMBERS = 1 << 21  # numbers sampled at a time
SIMULATED = 8192  # observations simulated, at most: their distance to the real ones is settled by then


def posterior_draws(prior: Prior, problem: Problem, recipe: Recipe, draws: int, bound: float) -> Tensor:
    """Draws for every observation as the run's E-step makes them, `(draws, n, *event)`."""
    options = recipe.drawing.independent(draws)
    obs = problem.obs.to(prior.mean.device)
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
    """Measures of the run at `path`, by `samples` prior samples and, where the truth is known, `draws` posterior draws.

    reference: clean data. 'source' is the truth behind a simulated source's observations; a `.npy` holds samples `(n, *event)`; pixels
        are a `.npy` of uint8, a `.npz` with an array `images`, or a folder or batch of CIFAR-10.
    observations: posterior draws are made for so many, the first ones; those that measure nothing are left out.
    extractor: adds FID and KID through this feature extractor (see `metrics.load_extractor`: it is executed, so it is named here or by
        the environment variable DIFFEM_INCEPTION and never by the run).
    range: the values of x that are pixel 0 and pixel 255, where the data source does not say.
    lap: a lap's number, 'best', or None for the last.
    source: the function that made the observations, `module:function`, where the run's recipe names one; it is executed.
    """
    if range is not None and not -math.inf < range[0] < range[1] < math.inf:
        raise InputError(f"--range must be two finite numbers, the lower first, got {range[0]:g} {range[1]:g}")
    run = RunDir(path)
    recipe, prior = run.recipe(), load(path, lap, device, "recipe")
    history, chosen = run.metrics(), choose_lap(run, lap)
    results: dict[str, Any] = {"run": str(path), "lap": chosen, "best_lap": verdict(history).best}
    metrics = history[chosen]
    for key in ("chi2", "heldout_chi2", "predictive_log_likelihood", "predictive_error", "rejected", "guards"):
        if key in metrics:
            results[key] = metrics[key]
    problem = run.problem(source)
    if problem is not None:
        problem = replace(problem, obs=in_float32(problem.obs))
    if range is None and problem is not None:
        range = problem.range
    # what may be refused comes before what takes long
    network = _extractor(extractor, reference, prior.event_shape, range, device)
    truth = None if reference is None else _reference(reference, problem, range)
    if truth is not None and truth.x.shape[1:] != prior.event_shape:
        raise InputError(
            f"--reference holds samples of shape {tuple(truth.x.shape[1:])}, the prior is over {prior.event_shape}"
        )
    x = _samples(prior, samples, steps, sampler, batch)
    if problem is not None:
        some = problem.obs[: min(samples, len(problem.obs), SIMULATED)].informative()
        if some is not None:
            results["observation_distance"] = observation_distance(x[: len(some)].cpu(), some)
    if truth is None:
        return results
    real = truth.x.to(x)
    results["sliced_wasserstein"] = sliced_wasserstein(x, real[: len(x)])
    results["frechet"] = frechet(x, real)
    if network is not None:
        assert range is not None
        pixels = to_uint8(truth.x, range) if truth.pixels is None else truth.pixels
        results |= image_quality(to_uint8(x, range), make_reference(pixels, network), network)
        results |= {"samples": len(x), "reference_images": len(pixels)}
    if truth.paired and problem is not None and draws > 0:
        rows = (~problem.obs[:observations].empty()).nonzero().flatten().cpu()
        if len(rows) == 0:
            return results
        bound = largest_plausible(load(path, 0), recipe.e_step.bound)
        part = Problem(problem.obs[rows])
        drawn = posterior_draws(prior, part, recipe, draws, bound)
        first = truth.x[rows]
        results["mse_draw"] = mse_unmeasured(drawn[0], first, part.obs)
        if draws > 1:
            results[f"mse_mean{draws}"] = mse_unmeasured(drawn.mean(0), first, part.obs)
            inside = coverage(drawn, first)
            results |= {"coverage90": float(inside), "coverage90_error": inside.standard_error}
    return results


def _samples(prior: Prior, n: int, steps: int, sampler: str, batch: int | None) -> Tensor:
    """n prior samples on the prior's device."""
    if isinstance(prior, GaussianPrior):
        return _gaussian_samples(prior, n)
    size = batch or max(64, BATCH_NUMBERS // math.prod(prior.event_shape))
    if isinstance(prior, DiffusionPrior) and prior.mean.is_cuda and compiling_pays(math.ceil(n / size) * steps):
        compile_network(prior.network)
    return prior.sample(n, steps=steps, sampler=sampler, batch_size=min(n, size))


def _gaussian_samples(prior: GaussianPrior, n: int) -> Tensor:
    z = torch.randn(n, *prior.event_shape, generator=torch.Generator().manual_seed(0))
    return prior.exact_sample(z.to(prior.mean))


def _extractor(
    extractor: str | Path | None,
    reference: str | None,
    event: tuple[int, ...],
    range: tuple[float, float] | None,
    device: torch.device | str,
) -> Extractor | None:
    """The network for image metrics where they can be made; asked for and impossible is an error, set aside and impossible is not."""
    images = len(event) == 2 or (len(event) == 3 and event[0] in (1, 3))
    if extractor is None:
        usable = EXTRACTOR_VARIABLE in os.environ and reference is not None and images and range is not None
        return load_extractor(None, device) if usable else None
    if reference is None:
        raise InputError("--extractor: image metrics compare with real images; give --reference")
    if not images:
        raise InputError(
            f"--extractor: image metrics need samples of shape (h, w), (1, h, w) or (3, h, w), not {event}"
        )
    if range is None:
        raise InputError(
            "--extractor: this run's data source does not say which values are pixel 0 and pixel 255; give --range LOW HIGH"
        )
    return load_extractor(extractor, device)


@dataclass
class _Truth:
    """Clean data on the prior's scale, as pixels where they came as such, and whether sample i is behind observation i."""

    x: Tensor
    paired: bool
    pixels: Tensor | None = None


def _reference(reference: str, problem: Problem | None, range: tuple[float, float] | None) -> _Truth:
    if reference == "source":
        if problem is None or problem.reference is None:
            raise InputError(
                "--reference source: this run's data source does not know the truth behind its observations"
            )
        return _Truth(problem.reference, True)
    data = _read(Path(reference))
    pixels = data if data.dtype == torch.uint8 else None
    if pixels is not None:
        if range is None:
            raise InputError(
                f"--reference {reference} holds pixels, and this run's data source does not say which values are pixel 0 and "
                "pixel 255; give --range LOW HIGH"
            )
        data = range[0] + pixels.float() * ((range[1] - range[0]) / 255)
    known = None if problem is None else problem.reference
    if known is not None:
        paired = known.shape == data.shape and torch.equal(known, data)
    else:
        paired = problem is not None and len(data) == len(problem.obs) and _explains(data, problem.obs)
    return _Truth(data, paired, pixels)


def _explains(x: Tensor, obs: Observations, most: int = 2048) -> bool:
    """Whether sample i is behind observation i: its residual is smaller than sample i + 1's, more often than by chance.

    As many samples as observations may be another set of the same size; errors against those would mean nothing.
    """
    if tuple(x.shape[1:]) != obs.x_shape or len(x) < 2:
        return False
    rows = torch.arange(min(len(x), most))
    some = obs[rows].to("cpu")
    own, other = some.chi2(x[rows]), some.chi2(x[(rows + 1) % len(x)])
    known = ~(own.isnan() | other.isnan())  # observations that measure nothing cannot tell
    wins, n = int((own < other)[known].sum()), int(known.sum())
    return n > 0 and wins >= min(n, n / 2 + math.sqrt(n))  # two standard deviations of a fair coin


def _read(path: Path) -> Tensor:
    """Clean data from a file or folder: uint8 pixels, or float32 samples."""
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
            f"{path} holds {array.dtype} {array.shape}; needed: finite samples (n, *event), or uint8 pixels"
        )
    return torch.from_numpy(array).float()
