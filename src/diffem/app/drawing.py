"""Samples of the prior of a lap, and posterior draws for one observation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from ..em.expectation import default_sampler_options, posterior_from_recipe
from ..observations import Observations
from ..operators import Identity, Mask
from ..report import pictures
from .limits import LIMITS, whole
from .observing import ObservedSample
from .viewer import Viewer


def prior_samples(viewer: Viewer, lap: Any, n: Any = 36, steps: Any = 64, seed: Any = 0) -> Tensor:
    """Sample the prior of a lap; `steps` is not used for the Gaussian start, whose samples are exact.

    Returns:
        Samples, `(n, *event)`, on the CPU.
    """
    n, steps = whole(n, "samples", 1, LIMITS["samples"]), whole(steps, "steps", 1, LIMITS["steps"])
    seed = whole(seed, "seed", 0, LIMITS["seed"])
    prior = viewer.prior(viewer.check_lap(lap))
    return prior.sample(n, steps=steps, seed=seed, progress=False).cpu()


@dataclass
class PosteriorDraws:
    """Posterior draws for one observation, with the statistics that the page displays.

    Attributes:
        seen: `(*event)` or `(*measurement)`. The observation as a picture; NaN at unmeasured entries.
        draws: `(draws, *event)`.
        residual: `(*measurement)`. (y − A mean) / σ_y; NaN at unmeasured entries.
        chi2: `(draws,)`. Squared residual of each draw per measured value; NaN if the observation has none.
        truth: `(*event)`, if it is known.
        notes: Sentences displayed above the pictures.
        name: Caption of `seen`.
        entries: `(*event)`. The measured entries of x, NaN elsewhere; None if A mixes entries of x.
    """

    seen: Tensor
    draws: Tensor
    residual: Tensor
    chi2: Tensor
    truth: Tensor | None = None
    notes: list[str] = field(default_factory=list)
    name: str = "observation"
    entries: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        """Mean of the draws, `(*event)`."""
        return self.draws.mean(0)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the draws, `(*event)`."""
        return self.draws.std(0, correction=0)


def condition(
    viewer: Viewer, lap: Any, observed: ObservedSample, draws: Any = 16, steps: Any = 64, seed: Any = 0
) -> PosteriorDraws:
    """Draw from the posterior of one observation under the prior of a lap, with the recipe's posterior method."""
    draws, steps = whole(draws, "draws", 2, LIMITS["draws"]), whole(steps, "steps", 1, LIMITS["steps"])
    seed = whole(seed, "seed", 0, LIMITS["seed"])
    prior = viewer.prior(viewer.check_lap(lap))
    obs = observed.obs.to(prior.mean)
    if obs.x_shape != prior.event_shape:
        raise InputError(
            f"the observation must be of x with shape {prior.event_shape}, as in this run, got {obs.x_shape}"
        )
    options = viewer.recipe.drawing
    sampling = {} if prior.is_exact else default_sampler_options(options)
    x = posterior_from_recipe(prior, obs, options).sample(draws, steps=steps, seed=seed, progress=False, **sampling)
    chi2 = torch.cat([obs.chi2(d) for d in x])
    scale = obs.cov.diagonal(tuple(obs.y.shape[1:])).sqrt()
    residual = (obs.residual(x.mean(0)) / scale)[0]
    measured = obs.measured
    if measured is not None:
        residual = torch.where(measured.expand_as(obs.y)[0], residual, torch.nan)
    notes = []
    if obs.empty().all():
        notes.append("This observation has no measured values, so the draws are samples of the prior.")
    if float(chi2.median()) > 2:
        notes.append(
            "The draws do not fit the observation. Try more steps, or a noise level closer to the training data's."
        )
    truth = None if observed.truth is None else observed.truth.cpu()
    picture, name = seen(obs)
    entries = obs.backprojected()[0].cpu() if isinstance(obs.A, Identity | Mask) else None
    return PosteriorDraws(picture.cpu(), x[:, 0].cpu(), residual.cpu(), chi2.cpu(), truth, notes, name, entries)


def seen(obs: Observations) -> tuple[Tensor, str]:
    """Convert one observation to a picture.

    Returns:
        The picture, y if it is an image and Aᵀy otherwise, with NaN at unmeasured entries, and its caption.
    """
    y = obs.y[0]
    if isinstance(obs.A, Identity | Mask):
        return obs.backprojected()[0], "observation"
    if obs.measured is None and not obs.A.complex_output and pictures.is_image(y.cpu().numpy()):
        return y, "observation"
    return obs.backprojected()[0], "observation, as Aᵀy"
