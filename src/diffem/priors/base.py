r"""A prior is a denoiser: `prior(x_t, sigma) = E[x | x_t]`, with x_t = x + sigma·z.

That one function is all a sampler needs to draw from the prior, and all a posterior method needs to condition it. It works on
batches `(n, *event)` with sigma a scalar or one per sample, treats samples independently, and is never clipped: the Jacobian of
a clipped denoiser is not a covariance.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..core.errors import InputError
from ..core.modes import in_own_modes
from ..core.progress import Progress
from ..core.randomness import Stream
from ..core.shapes import noise_level, require_batch, require_event, require_precision, require_same_dtype
from ..linalg import Covariance
from ..observations import Observations
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS, SIGMA_MAX, SIGMA_MIN, Sampler, draw, get_sampler, schedule
from .methods import CHOOSERS, METHODS, Conditioned

logger = logging.getLogger("diffem")


class Prior(nn.Module):
    """Base of the priors. A subclass sets the buffer `mean` `(*event)` and implements `denoise(x_t, sigma)`.

    Attributes:
        scale: The typical size of a sample's deviation from the mean, in the units of the data. Everything that would
            otherwise be an absolute number (the default noise levels, preconditioning, screening) is relative to it,
            so that data multiplied by c give results multiplied by c.
        sigma_min, sigma_max: The range of noise levels of a draw, in the units of the data; 1e-3 and 1e2 times `scale`
            by default.
    """

    mean: Tensor
    scale: float
    sigma_min: float
    sigma_max: float

    def __init__(
        self, mean: Tensor, sigma_min: float | None = None, sigma_max: float | None = None, *, scale: float = 1.0
    ) -> None:
        super().__init__()
        if not 0 < scale < math.inf:
            raise InputError(f"the scale of a prior must be positive and finite, got {scale}")
        self.scale = float(scale)
        sigma_min = SIGMA_MIN * self.scale if sigma_min is None else sigma_min
        sigma_max = SIGMA_MAX * self.scale if sigma_max is None else sigma_max
        schedule(1, sigma_min, sigma_max)  # validates the pair
        require_mean(mean, type(self).__name__)
        self.register_buffer("mean", mean.detach().clone())
        self._cov: Covariance | None = None
        self.sigma_min, self.sigma_max = float(sigma_min), float(sigma_max)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return tuple(self.mean.shape)

    def covariance(self) -> Covariance | None:
        """Σ_x of the prior where it is known; the heuristic `sigma_x` uses it."""
        return self._cov

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # nn.Module moves its buffers through here; the covariance is a value beside them and moves along
        super()._apply(fn, recurse)
        if self._cov is not None:
            self._cov = self._cov.to(self.mean)
        return self

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """E[x | x_t]; x_t `(n, *event)`, sigma `()` or `(n,)`, both checked."""
        raise NotImplementedError

    def arithmetic(self) -> AbstractContextManager[None]:
        """How the denoiser and its vector–Jacobian products are to be computed."""
        return nullcontext()

    def batch_for(self, most: int) -> int:
        """How many samples to evaluate at a time, of `most`, when no batch size is given: as many as memory allows."""
        return most

    def prepare(self, batch: int, evaluations: int) -> None:
        """Before so many evaluations of batches, with their products: whatever makes them faster by more than it takes."""

    @in_own_modes
    def forward(self, x_t: Tensor, sigma: Tensor | float) -> Tensor:
        require_precision(self.mean.dtype, f"the {type(self).__name__}")
        require_event(require_batch(x_t, "x_t"), self.event_shape, type(self).__name__)
        require_same_dtype(x_t, "x_t", self.mean, f"the {type(self).__name__}")
        return self.denoise(x_t, noise_level(sigma, x_t))

    def sigmas(self, steps: int, sigma_min: float | None = None) -> Tensor:
        """`(steps + 1,)` decreasing noise levels in float64, in the units of the data.

        Args:
            sigma_min: The last level; the prior's own when not given.
        """
        low = self.sigma_min if sigma_min is None else sigma_min
        # spaced in units of the scale: logarithms of numbers with other units would round differently
        return self.scale * schedule(steps, low / self.scale, self.sigma_max / self.scale)

    @in_own_modes
    @torch.no_grad()
    def sample(
        self,
        n: int,
        steps: int = DEFAULT_STEPS,
        sampler: str | Sampler = DEFAULT_SAMPLER,
        seed: int = 0,
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> Tensor:
        """n draws from the prior, `(n, *event)`.

        sampler: a name of `samplers.SAMPLERS` or an object; `options` go to it (`eta`, `corrections`, `tau`).
        batch_size: how many are drawn at a time, as many as suit the device when absent; it does not change the random numbers.
        progress: True or False to show a progress bar or not; None shows one on a terminal when it takes a while.
        """
        if not isinstance(n, int) or n < 1:
            raise InputError(f"n must be a positive integer, got {n!r}")
        method, sigmas, stream = get_sampler(sampler, **options), self.sigmas(steps), Stream(seed, "prior")
        with evaluation_mode(self), Progress("prior samples", n * steps, "sample steps", progress) as bar:
            return torch.cat(
                [
                    draw(self, self.mean, index, sigmas, method, stream, progress=bar)
                    for index in torch.arange(n).split(batch_size or self.batch_for(n))
                ]
            )

    def posterior(self, obs: Observations, method: str | None = None, **options: Any) -> Conditioned:
        """The prior conditioned on observations: another denoiser, one sample per observation.

        method: a name of `posterior.METHODS`; `options` go to it (`solver`, `iterations`, `tolerance`, `guard`, ...). When not given, the
            best one that applies: 'exact' or 'conditional' where one forward pass answers, 'mmps' otherwise. The posterior's `method`
            tells which, and the logger "diffem" why.
        """
        return condition(self, obs, method, **options)


@in_own_modes
def condition(prior: Prior, obs: Observations, method: str | None = None, **options: Any) -> Conditioned:
    """The posterior of `prior` given `obs` by a method's name, or by the best one that applies; `options` are the method's."""
    if not isinstance(obs, Observations):
        raise InputError(f"obs must be diffem.Observations, got {type(obs).__name__}: Observations(y, A, sigma=...)")
    if method is None:
        method, why = CHOOSERS[-1](prior, obs) if not options else ("mmps", "its options were given")
        logger.info("posterior method %r: %s", method, why)
    if method not in METHODS:
        raise InputError(f"unknown posterior method {method!r}; known: {', '.join(METHODS)}")
    try:
        return METHODS[method](prior, obs, **options)
    except TypeError as error:
        raise InputError(f"method {method!r} does not take these options: {options} ({error})") from None


def typical_size(variances: Tensor, mean: Tensor) -> float:
    """The root mean square of standard deviations; of the mean's entries where nothing varies, and 1 where all are 0."""
    for squares in (variances, mean.square()):
        if (size := float(squares.double().mean().sqrt())) > 0:
            return size
    return 1.0


def require_mean(mean: Tensor, owner: str) -> None:
    """Refuse a mean that no prior can have."""
    if not mean.is_floating_point() or not torch.isfinite(mean).all():
        raise InputError(f"the mean of a prior must be floating point and finite, got {mean.dtype}")
    require_precision(mean.dtype, f"the mean of a {owner}")
    if mean.ndim == 0:
        raise InputError(f"{owner}: samples need at least one axis; give single numbers the shape (1,)")


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Dropout off while drawing, and every part of the module as it was afterwards."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
