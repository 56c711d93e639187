r"""A prior is a denoiser: `prior(x_t, sigma) = E[x | x_t]`, with x_t = x + sigma·z.

That one function is all a sampler needs to draw from the prior, and all a posterior method needs to condition it. It
works on batches `(n, *event)` with sigma a scalar or one per sample, treats samples independently, and is never
clipped: the Jacobian of a clipped denoiser is not a covariance.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.options import options_of
from ..core.progress import Progress
from ..core.randomness import Stream
from ..core.shapes import require_precision, require_state
from ..linalg import Covariance
from ..observations import Observations
from ..observations.levels import has_unknowns
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS, SIGMA_MAX, SIGMA_MIN, Sampler, Target, get_sampler, schedule
from .levels import NoiseLevels, with_known_noise
from .methods import METHODS, ConditionedPrior
from .parameters import OperatorParameters, with_known_operator

logger = logging.getLogger("diffem")


class Prior(nn.Module):
    """Base of the priors. A subclass sets the buffer `mean` `(*event)` and implements `denoise(x_t, sigma)`.

    Attributes:
        scale: The typical size of a sample's deviation from the mean, in the units of the data. Everything that would
            otherwise be an absolute number (the default noise levels, preconditioning, screening) is relative to it,
            so that data multiplied by c give results multiplied by c.
        sigma_min: The lowest noise level of a draw, in the units of the data; 1e-3 times `scale` by default.
        sigma_max: The highest noise level of a draw; 1e2 times `scale` by default.
        noise: The noise levels of the observations, if they were estimated together with the prior.
        operator_parameters: The parameters of the operators, if they were estimated together with the prior.
    """

    is_exact: ClassVar[bool] = False  # whether `sample` and `posterior(obs).sample` draw in closed form by default
    noise: NoiseLevels | None = None
    operator_parameters: OperatorParameters | None = None

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
        """The shape of a sample."""
        return tuple(self.mean.shape)

    def covariance(self) -> Covariance | None:
        """Σ_x of the prior, or None if the prior has none. The heuristic `sigma_x` uses it."""
        return self._cov

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        # nn.Module moves its buffers through here; the covariance is not a buffer and must be moved too
        super()._apply(fn, recurse)
        if self._cov is not None:
            self._cov = self._cov.to(self.mean)
        return self

    def denoise(self, x_t: Tensor, sigma: Tensor) -> Tensor:
        """E[x | x_t]; x_t `(n, *event)`, sigma `()` or `(n,)`, both checked."""
        raise NotImplementedError

    def arithmetic(self) -> AbstractContextManager[None]:
        """Context in which the denoiser and its vector–Jacobian products are computed."""
        return nullcontext()

    def batch_for(self, most: int) -> int:
        """Default batch size, at most `most`: as many samples as memory allows."""
        return most

    def prepare(self, batch: int, evaluations: int) -> None:
        """Prepare for evaluations with VJPs, for instance by compiling, if that saves time in total."""

    @in_default_modes
    def forward(self, x_t: Tensor, sigma: Tensor | float) -> Tensor:
        """E[x | x_t], `(n, *event)`; sigma is a scalar or `(n,)`. `prior(x_t, sigma)` calls it."""
        return self.denoise(*require_state(x_t, sigma, self.mean, type(self).__name__))

    def sigmas(self, steps: int, sigma_min: float | None = None) -> Tensor:
        """Compute the decreasing noise levels `(steps + 1,)` in float64, in the units of the data.

        Args:
            sigma_min: The last level. Default: `sigma_min` of the prior.
        """
        low = self.sigma_min if sigma_min is None else sigma_min
        # computed in units of the scale, so that the rounding does not depend on the units of the data
        return self.scale * schedule(steps, low / self.scale, self.sigma_max / self.scale)

    @in_default_modes
    @torch.no_grad()
    def sample(
        self,
        n: int,
        steps: int = DEFAULT_STEPS,
        sampler: str | Sampler | None = None,
        seed: int = 0,
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
        **options: Any,
    ) -> Tensor:
        """Draw n samples of the prior, `(n, *event)`. The same seed gives the same samples.

        Args:
            n: Number of samples.
            steps: Sampling steps.
            sampler: A name of `samplers.SAMPLERS` or a sampler object. Default: "ddpm2"; for a Gaussian prior exact
                samples, which take no steps and no options.
            seed: Seed of the random numbers.
            batch_size: Number of samples per batch; the samples do not depend on it. Default: as many as suit the
                device.
            progress: Whether to show a progress bar. Default: on a terminal, if it takes more than a few seconds.
            options: Options of the sampler (`eta`, `corrections`, `tau`).
        """
        require_count(n, "n")
        if batch_size is not None:
            require_count(batch_size, "batch_size")
        if sampler is None and self.is_exact:
            require_count(steps, "steps")
            require_no_options(options)
            return self.exact_samples(n, seed, batch_size or self.batch_for(n))
        method = get_sampler(DEFAULT_SAMPLER if sampler is None else sampler, **options)
        if method.picks > 1:
            raise InputError("picks is for posterior draws: samples of a prior are independent")
        sigmas, stream = self.sigmas(steps), Stream(seed, "prior")
        with evaluation_mode(self), Progress("prior samples", n * steps, "sample steps", progress) as bar:
            return torch.cat(
                [
                    method.draw(Target(self, self), self.mean, index, sigmas, stream, progress=bar).x[:, 0]
                    for index in torch.arange(n).split(batch_size or self.batch_for(n))
                ]
            )

    def exact_samples(self, n: int, seed: int, batch_size: int) -> Tensor:
        """Draw n samples in closed form, `(n, *event)`. A prior with `is_exact` implements this function."""
        raise NotImplementedError

    @in_default_modes
    def posterior(self, obs: Observations, method: str | None = None, **options: Any) -> ConditionedPrior:
        """Condition the prior on observations. The result is another denoiser, with one sample per observation.

        Args:
            obs: The observations.
            method: A name of `posterior.METHODS`. Default: the best one that applies (`choose_method`), or 'mmps' if
                options are given. The attribute `method` of the result names it, and the logger "diffem" records the
                reason.
            options: Options of the method (`solver`, `iterations`, `tolerance`, `guard`, ...).

        Returns:
            The posterior. `prior.posterior(obs).sample(draws=16)` draws from it, `(16, n, *event)`.

        Raises:
            InputError: If samples of the prior and of the observations differ in shape, or the method is unknown or
                does not apply.
        """
        if not isinstance(obs, Observations):
            raise InputError(
                f"obs must be diffem.Observations, got {type(obs).__name__}: Observations(y, A, sigma=...)"
            )
        obs = known_observations(self, obs)
        if method is None:
            method, why = self.choose_method(obs) if not options else ("mmps", "its options were given")
            logger.info("posterior method %r: %s", method, why)
        if method not in METHODS:
            raise InputError(f"unknown posterior method {method!r}; known: {', '.join(METHODS)}")
        try:
            return METHODS[method](self, obs, **options)
        except TypeError as error:
            known = options_of(METHODS[method], given=2)
            raise InputError(f"method {method!r} does not take these options: {options}; {known} ({error})") from None

    def supports(self, obs: Observations) -> bool:
        """Whether the prior has a conditional network that was made for observations like these."""
        return False

    def choose_method(self, obs: Observations) -> tuple[str, str]:
        """Choose the best posterior method for these observations; returns its name and the reason."""
        return "mmps", "it works with every prior"


def known_observations(prior: Prior, obs: Observations) -> Observations:
    """The observations with the noise levels and operator parameters of the prior, if theirs are unknown."""
    if not has_unknowns(obs):
        return obs
    return with_known_operator(with_known_noise(obs, prior.noise), prior.operator_parameters)


def typical_size(variances: Tensor, mean: Tensor) -> float:
    """Root mean square of the standard deviations, or of the mean if all variances are 0, or else 1."""
    for squares in (variances, mean.square()):
        if (size := float(squares.double().mean().sqrt())) > 0:
            return size
    return 1.0


def require_count(value: Any, name: str) -> None:
    """Raise InputError unless the value is a positive integer."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a positive integer, got {value!r}")


def require_no_options(options: dict[str, Any]) -> None:
    """Raise InputError if exact draws are given the options of a sampler."""
    if options:
        raise InputError(f"exact draws take no options, got {options}; pass sampler=... to use them")


def require_tensors(owner: str, **values: Any) -> None:
    """Raise InputError unless all values, by name, are floating-point tensors."""
    for name, value in values.items():
        if not isinstance(value, Tensor) or not value.is_floating_point():
            given = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise InputError(f"{owner}: {name} must be a floating-point torch.Tensor, got {given}")


def require_mean(mean: Tensor, owner: str) -> None:
    """Raise InputError unless the mean is finite, floating point, and has at least one axis."""
    require_tensors(owner, mean=mean)
    if not torch.isfinite(mean).all():
        count = int((~torch.isfinite(mean)).sum())
        raise InputError(f"{owner}: the mean must be finite, got {count_of(count, 'NaN or infinite value')}")
    require_precision(mean.dtype, f"the mean of a {owner}")
    if mean.ndim == 0:
        raise InputError(f"{owner}: samples need at least one axis; give single numbers the shape (1,)")


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode inside this context, and restore the mode of every part afterwards."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True
