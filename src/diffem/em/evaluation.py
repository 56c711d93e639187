"""Measuring a finished run: what its observations say, and what clean data say where there are any."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.sources import Problem, make_problem
from ..errors import InputError
from ..metrics import coverage, frechet, mse_unmeasured, observation_distance, sliced_wasserstein
from ..priors import GaussianPrior, Prior
from ..runs.files import read_array
from ..runs.recipe import Recipe
from ..runs.rundir import RunDir
from .expectation import draw_shard
from .loop import load
from .screening import default_bound

EVALUATION_LAP = 1 << 21  # random numbers of their own


def posterior_draws(prior: Prior, problem: Problem, recipe: Recipe, draws: int, bound: float) -> Tensor:
    """Draws for every observation as the run's E-step makes them, `(draws, n, *event)`."""
    options = recipe.e_step.model_copy(update={"draws": draws})
    obs = problem.obs.to(prior.mean.device)
    index = torch.arange(len(obs))
    shard = draw_shard(
        prior, obs, options, index=index, seed=recipe.seed, lap=EVALUATION_LAP, bound=bound, batch_size=options.batch
    )
    return shard.x.cpu()


def evaluate(
    path: str | Path,
    reference: str | None = None,
    *,
    draws: int = 16,
    samples: int = 1024,
    lap: int | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Any]:
    """Measures of the run at `path`; `reference`: a `.npy` of clean data `(n, *event)`, or 'source'."""
    run = RunDir(path)
    recipe, prior = run.recipe(), load(path, lap, device)
    results: dict[str, Any] = {"run": str(path), "lap": run.laps_done() if lap is None else lap}
    metrics = run.metrics()[results["lap"]]
    for key in ("chi2", "heldout_chi2", "predictive_log_likelihood", "rejected", "guards"):
        if key in metrics:
            results[key] = metrics[key]
    problem = None
    if recipe.data.source != "given":
        problem = make_problem(recipe.data.source, recipe.seed, recipe.data.options("source"))
    x = prior.sample(samples).cpu() if not isinstance(prior, GaussianPrior) else _gaussian_samples(prior, samples)
    if problem is not None:
        some = problem.obs[: min(samples, len(problem.obs))]
        results["observation_distance"] = observation_distance(x[: len(some)], some)
    if reference is None:
        return results
    truth, paired = _reference(reference, problem)
    if truth.shape[1:] != x.shape[1:]:
        raise InputError(
            f"--reference holds samples of shape {tuple(truth.shape[1:])}, the prior is over {prior.event_shape}"
        )
    results["sliced_wasserstein"] = sliced_wasserstein(x, truth[: len(x)])
    results["frechet"] = frechet(x, truth)
    if paired and problem is not None:
        bound = recipe.e_step.bound or default_bound(load(path, 0))
        drawn = posterior_draws(prior, problem, recipe, draws, bound)
        results["mse_draw"] = mse_unmeasured(drawn[0], truth, problem.obs)
        results[f"mse_mean{draws}"] = mse_unmeasured(drawn.mean(0), truth, problem.obs)
        results["coverage90"] = coverage(drawn, truth)
    return results


def _gaussian_samples(prior: GaussianPrior, n: int) -> Tensor:
    z = torch.randn(n, *prior.event_shape, generator=torch.Generator().manual_seed(0))
    return prior.exact_sample(z.to(prior.mean)).cpu()


def _reference(reference: str, problem: Problem | None) -> tuple[Tensor, bool]:
    """Clean data, and whether sample i is the truth behind observation i."""
    if reference == "source":
        if problem is None or problem.reference is None:
            raise InputError(
                "--reference source: this run's data source does not know the truth behind its observations"
            )
        return problem.reference, True
    truth = torch.from_numpy(read_array(Path(reference))).float()
    return truth, problem is not None and len(truth) == len(problem.obs)
