"""Posterior reconstructions of MRI slices, and their errors.

A reconstruction consists of draws, their mean and standard deviation, the zero-filled image Aᵀy and the posterior mean
under the Gaussian start. If the truth is known, it also has the errors of all of them and the coverage of the draws.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..em.expectation import posterior_from_recipe, recipe_sampling
from ..em.screening import acceptable, largest_plausible
from ..metrics import coverage, psnr
from ..metrics.images import ssim
from ..observations import Observations, Problem
from ..operators import Crop
from ..priors import GaussianPrior, Prior
from ..runs.recipe import Recipe
from ..runs.sources import make_problem

RECONSTRUCTION_LAP = 1 << 22  # address of random numbers that no lap uses
MEAN_OF = 8  # number of draws in the mean whose error is reported


def intensity(x: Tensor) -> Tensor:
    """Convert samples to intensities in [0, 1].

    Args:
        x: `(..., 1, H, W)` in [−2, 2], or complex `(..., 2, H, W)`.

    Returns:
        `(..., 1, H, W)`.
    """
    if x.shape[-3] == 2:
        return torch.hypot(x[..., 0, :, :], x[..., 1, :, :]).unsqueeze(-3) / 2
    return (x + 2) / 4


@dataclass
class Reconstruction:
    """Reconstructions of n slices.

    Attributes:
        name: Name of the measurement, such as "R = 6".
        obs: The observations.
        draws: `(k, n, *event)`. Posterior draws.
        zero_filled: `(n, *event)`. Aᵀy.
        gaussian: `(n, *event)`. Posterior mean under the Gaussian start, if the prior has one.
        truth: `(n, *event)`. The true images, if known.
        rejected: Fraction of draws that fail the screening of the E-step.
    """

    name: str
    obs: Observations
    draws: Tensor
    zero_filled: Tensor
    gaussian: Tensor | None = None
    truth: Tensor | None = None
    rejected: float = 0.0

    @property
    def mean(self) -> Tensor:
        """Mean of the draws, `(n, *event)`."""
        return self.draws.mean(0)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the draws, `(n, *event)`."""
        return self.draws.std(0)

    def arrays(self) -> dict[str, Tensor]:
        """All arrays, by name."""
        named = {"draws": self.draws, "mean": self.mean, "std": self.std, "zero_filled": self.zero_filled}
        named |= {"chi2": torch.stack([self.obs.chi2(x) for x in self.draws])}
        return named | {name: x for name, x in (("gaussian", self.gaussian), ("truth", self.truth)) if x is not None}

    def measures(self) -> dict[str, Any]:
        """Residual χ² of the draws and, if the truth is known, mean PSNR and SSIM of intensities and the coverage."""
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
) -> Reconstruction:
    """Draw from the posterior of slices with the method and sampler of a recipe.

    Args:
        name: Name of the measurement.
        prior: The prior. The Gaussian start of its run is part of it.
        obs: Observations of the slices.
        recipe: The recipe of the run.
        draws: Draws per slice.
        truth: `(n, *event)`. The true images, if known.
        steps: Sampling steps. Default: those of the recipe.
        batch: Samples per batch. Default: that of the recipe, or chosen for the device.

    Returns:
        The reconstruction, on the CPU.
    """
    options = recipe.drawing.independent(draws)
    there = obs.to(prior.mean.device)
    batch = batch or options.batch or prior.batch_for(draws * len(there))
    x = posterior_from_recipe(prior, there, options).sample(
        draws,
        steps=steps or options.steps,
        seed=recipe.seed,
        lap=RECONSTRUCTION_LAP,
        batch_size=batch,
        **recipe_sampling(prior, options),
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
    """Make the observations of the recipe's data source with other settings, such as another acceleration.

    Raises:
        InputError: If the data source is not an MRI source.
    """
    source, options = recipe.data.source, recipe.data.options("source")
    if source not in ("fastmri", "mri_images"):
        raise InputError(
            f"accelerations need the data source 'fastmri' or 'mri_images', this run has source {source!r}"
        )
    if source == "mri_images":
        options |= {"part": "heldout", "n": None}  # n is the number of training slices
    return make_problem(source, recipe.seed, {**options, **changes})


def spread(problem: Problem, n: int) -> Problem:
    """Select at most n slices, spread evenly."""
    total = len(problem.obs)
    rows = (torch.arange(min(n, total)) * total) // min(n, total)
    truth = None if problem.reference is None else problem.reference[rows].clone()
    return Problem(problem.obs[rows], truth, about=problem.about)


def centre_window(truth: Tensor, size: int, sigma: float, seed: int) -> Observations:
    """Observe the central window of images, with noise.

    Args:
        truth: `(n, *event)`. The images.
        size: Side of the window.
        sigma: Noise level.
    """
    height, width = truth.shape[-2:]
    A = Crop((min(size, height), min(size, width)), (height, width))
    y = A(truth)
    index = torch.arange(len(truth))
    return Observations(y + sigma * Stream(seed, "crop noise").normal(index, tuple(y.shape[1:])), A, sigma=sigma)
