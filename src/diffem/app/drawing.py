"""Samples of a lap's prior, and draws given an observation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..em.expectation import default_sampler_options, posterior_from_recipe
from ..observations import Observations
from ..operators import Identity, Mask
from ..priors import GaussianPrior
from ..report import pictures
from .asked import LIMITS, whole
from .observing import Observed
from .viewer import Viewer


def prior_samples(viewer: Viewer, lap: Any, n: Any = 36, steps: Any = 64, seed: Any = 0) -> Tensor:
    """Samples of a lap's prior, `(n, *event)`; those of the Gaussian start need no steps."""
    n, steps = whole(n, "samples", 1, LIMITS["samples"]), whole(steps, "steps", 1, LIMITS["steps"])
    seed = whole(seed, "seed", 0, LIMITS["seed"])
    prior = viewer.prior(viewer.check_lap(lap))
    if isinstance(prior, GaussianPrior):
        z = Stream(seed, "app gaussian").normal(torch.arange(n), prior.event_shape, dtype=prior.mean.dtype)
        return prior.exact_sample(z.to(prior.mean)).cpu()
    return prior.sample(n, steps=steps, seed=seed, progress=False).cpu()


@dataclass
class Conditioned:
    """Posterior draws of one observation and what they amount to."""

    seen: Tensor  # (*event) or (*measurement), NaN where nothing was measured
    draws: Tensor  # (draws, *event)
    residual: Tensor  # (*measurement): y − A mean in standard deviations of the noise, NaN where nothing was measured
    chi2: Tensor  # (draws,) residual of each draw per measured value; NaN if nothing was measured
    truth: Tensor | None = None
    notes: list[str] = field(default_factory=list)
    name: str = "observation"  # what `seen` is
    entries: Tensor | None = (
        None  # (*event): measured values of entries of x, NaN where there are none; None if it mixes them
    )

    @property
    def mean(self) -> Tensor:
        return self.draws.mean(0)

    @property
    def std(self) -> Tensor:
        return self.draws.std(0, correction=0)


def condition(
    viewer: Viewer, lap: Any, observed: Observed, draws: Any = 16, steps: Any = 64, seed: Any = 0
) -> Conditioned:
    """Draw x given one observation under a lap's prior, by the recipe's own posterior method."""
    draws, steps = whole(draws, "draws", 2, LIMITS["draws"]), whole(steps, "steps", 1, LIMITS["steps"])
    seed = whole(seed, "seed", 0, LIMITS["seed"])
    prior = viewer.prior(viewer.check_lap(lap))
    obs = observed.obs.to(prior.mean)
    if obs.x_shape != prior.event_shape:
        raise InputError(f"the observation is of {obs.x_shape}, the samples of this run have shape {prior.event_shape}")
    if isinstance(prior, GaussianPrior):
        x = torch.stack([prior.draw_posterior(obs, seed=seed, draw=d) for d in range(draws)])
    else:
        options = viewer.recipe.drawing
        posterior = posterior_from_recipe(prior, obs, options)
        x = posterior.sample(draws, steps=steps, seed=seed, progress=False, **default_sampler_options(options))
    chi2 = torch.cat([obs.chi2(d) for d in x])
    scale = obs.cov.diagonal(tuple(obs.y.shape[1:])).sqrt()
    residual = (obs.residual(x.mean(0)) / scale)[0]
    measured = obs.measured
    if measured is not None:
        residual = torch.where(measured.expand_as(obs.y)[0], residual, torch.nan)
    notes = []
    if obs.empty().all():
        notes.append("Nothing was measured here: the draws are samples of the prior.")
    if float(chi2.median()) > 2:
        notes.append(
            "The draws miss the observation: try more steps, or a noise level nearer to what the prior was trained with."
        )
    truth = None if observed.truth is None else observed.truth.cpu()
    picture, name = seen(obs)
    entries = obs.backprojected()[0].cpu() if isinstance(obs.A, Identity | Mask) else None
    return Conditioned(picture.cpu(), x[:, 0].cpu(), residual.cpu(), chi2.cpu(), truth, notes, name, entries)


def seen(obs: Observations) -> tuple[Tensor, str]:
    """One observation as a picture and its name: y itself where it is an image like x, else Aᵀy; NaN where nothing was measured."""
    y = obs.y[0]
    if isinstance(obs.A, Identity | Mask):
        return obs.backprojected()[0], "observation"
    if obs.measured is None and not obs.A.complex_output and pictures.is_image(y.cpu().numpy()):
        return y, "observation"
    return obs.backprojected()[0], "observation, as Aᵀy"
