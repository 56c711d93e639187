"""What a radiologist would look at: slices measured at several accelerations, drawn from the posterior, beside the zero-filled image.

For every acceleration R: draws, their mean and standard deviation, the zero-filled image Aᵀy, the Gaussian prior's posterior mean, and,
where the truth is known, the errors of all of them and how well the draws know their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..em.expectation import posterior_from_recipe
from ..em.screening import acceptable, largest_plausible
from ..metrics import coverage, psnr
from ..metrics.ssim import ssim
from ..observations import Observations, Problem
from ..operators import Crop
from ..priors import GaussianPrior, Prior
from ..runs.recipe import Recipe
from ..runs.sources import make_problem

RECONSTRUCTION_LAP = 1 << 22  # random numbers of their own
MEAN_OF = 8  # draws in the mean whose error is measured


def intensity(x: Tensor) -> Tensor:
    """Samples `(..., 1, H, W)` in [−2, 2] or complex `(..., 2, H, W)` as intensities `(..., 1, H, W)` in [0, 1]."""
    if x.shape[-3] == 2:
        return torch.hypot(x[..., 0, :, :], x[..., 1, :, :]).unsqueeze(-3) / 2
    return (x + 2) / 4


@dataclass
class Reconstruction:
    """The slices of one measurement. draws: `(k, n, *event)`; the others `(n, *event)`."""

    name: str
    obs: Observations
    draws: Tensor
    zero_filled: Tensor
    gaussian: Tensor | None = None
    truth: Tensor | None = None
    rejected: float = 0.0

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def std(self) -> Tensor:
        return self.draws.std(0)

    def arrays(self) -> dict[str, Tensor]:
        """Everything, by name, for a file."""
        named = {"draws": self.draws, "mean": self.mean, "std": self.std, "zero_filled": self.zero_filled}
        named |= {"chi2": torch.stack([self.obs.chi2(x) for x in self.draws])}
        return named | {name: x for name, x in (("gaussian", self.gaussian), ("truth", self.truth)) if x is not None}

    def measures(self) -> dict[str, Any]:
        """Residual χ² of the draws, and errors against the truth: PSNR and SSIM of intensities, averaged over slices."""
        counts = self.obs.counts().double()
        chi2 = torch.stack([torch.where(counts > 0, self.obs.chi2(x), 0) for x in self.draws]).double()
        row: dict[str, Any] = {
            "measurement": self.name,
            "slices": len(self.obs),
            "draws": len(self.draws),
            "measured": float(counts.mean() / self.obs.y[0].numel()),
            "chi2": float((chi2 * counts).sum() / (counts.sum() * len(chi2))),
            "rejected": self.rejected,
        }
        if self.truth is None:
            return row
        truth = intensity(self.truth)
        some = min(MEAN_OF, len(self.draws))
        row["mean_of"] = some
        sets = {"mean": intensity(self.draws[:some].mean(0)), "zero": intensity(self.zero_filled)}
        if self.gaussian is not None:
            sets["gaussian"] = intensity(self.gaussian)
        for name, x in sets.items():
            row[f"psnr_{name}"] = float(psnr(x, truth, 1.0).double().mean())
            row[f"ssim_{name}"] = float(ssim(x, truth).double().mean())
        row["psnr_draw"] = float(
            torch.stack([psnr(intensity(x), truth, 1.0) for x in self.draws[:some]]).double().mean()
        )
        row["ssim_draw"] = float(torch.stack([ssim(intensity(x), truth) for x in self.draws[:some]]).double().mean())
        row["coverage90"] = float(coverage(self.draws, self.truth))
        error = (self.mean - self.truth).square().double().mean().sqrt()
        row["error_to_std"] = float(error / self.std.square().double().mean().sqrt())
        return row


@torch.no_grad()
def reconstruct(
    name: str,
    prior: Prior,
    obs: Observations,
    recipe: Recipe,
    *,
    draws: int = 16,
    truth: Tensor | None = None,
    steps: int | None = None,
    batch: int | None = None,
    captured: bool = False,
) -> Reconstruction:
    """Draws of the slices of `obs` by the recipe's method, sampler and, unless given, steps and batch; everything comes back on the CPU.

    The Gaussian prior is the one the run started from, N(μ, Σ) as every later prior carries it.
    """
    options = recipe.drawing.independent(draws)
    sampler_options: dict[str, Any] = dict(options.sampler_options)
    there = obs.to(prior.mean.device)
    batch = batch or options.batch or prior.batch_for(draws * len(there))
    if isinstance(prior, GaussianPrior):
        parts = [prior.draw_posterior(there, seed=recipe.seed, lap=RECONSTRUCTION_LAP, draw=d) for d in range(draws)]
        x = torch.stack(parts).cpu()
    else:
        x = posterior_from_recipe(prior, there, options).sample(
            draws,
            steps=steps or options.steps,
            sampler=options.sampler,
            seed=recipe.seed,
            lap=RECONSTRUCTION_LAP,
            batch_size=batch,
            captured=captured,
            **sampler_options,
        )
        x = x.cpu()
    cov, gaussian = prior.covariance(), None
    if cov is not None:
        start = GaussianPrior(prior.mean, cov)
        rows = torch.arange(len(there)).split(batch)
        gaussian = torch.cat([start.posterior_mean(there[r]) for r in rows]).cpu()
    here = obs.to("cpu")
    bound = largest_plausible(prior, options.bound)
    rejected = [(~acceptable(d, here, options.chi2, bound)).double().mean() for d in x]
    return Reconstruction(name, here, x, here.A.adjoint(here.y), gaussian, truth, float(torch.stack(rejected).mean()))


def problem_like(recipe: Recipe, changes: dict[str, Any]) -> Problem:
    """The recipe's source with other settings, say another acceleration or the held-out part."""
    source, options = recipe.data.source, recipe.data.options("source")
    if source not in ("fastmri", "mri_images"):
        raise InputError(
            f"the run's data are from source {source!r}; accelerations are those of 'fastmri' and 'mri_images'"
        )
    if source == "mri_images":
        options |= {"part": "heldout", "n": None}  # a number of training slices says nothing about held-out ones
    return make_problem(source, recipe.seed, {**options, **changes})


def spread(problem: Problem, n: int) -> Problem:
    """n of the problem's slices, spread evenly; all when there are not more."""
    total = len(problem.obs)
    rows = (torch.arange(min(n, total)) * total) // min(n, total)
    truth = None if problem.reference is None else problem.reference[rows].clone()
    return Problem(problem.obs[rows], truth, about=problem.about)


def centre_window(truth: Tensor, size: int, sigma: float, seed: int) -> Observations:
    """The central window of images `(n, *event)` measured directly, with noise: what lies around it is for the posterior to say."""
    height, width = truth.shape[-2:]
    A = Crop((min(size, height), min(size, width)), (height, width))
    y = A(truth)
    index = torch.arange(len(truth))
    return Observations(y + sigma * Stream(seed, "crop noise").normal(index, tuple(y.shape[1:])), A, sigma=sigma)
