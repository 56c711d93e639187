r"""Prior × observations → denoiser.

A posterior method estimates E[x | x_t, y] = x̂ + σ_t² ∇ log q(y | x_t) from the prior's x̂ = E[x | x_t] and, for most
methods, its Jacobian J = ∂x̂/∂x_t through vector–Jacobian products. The result is again a denoiser, with one sample per
observation, so every sampler works with every method.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, overload

import torch
from torch import Tensor

from ..core.batched import as_index, take
from ..core.counting import count_of
from ..core.errors import InputError
from ..core.modes import differentiable, in_default_modes
from ..core.progress import Progress
from ..core.randomness import Stream
from ..core.shapes import require_like, require_state
from ..observations import Observations
from ..observations.features import require_linear_gaussian
from ..observations.last_levels import last_levels
from ..observations.precision import in_precision_of
from ..priors.base import Prior, evaluation_mode, require_count, require_no_options
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS, Sampler, Target, get_sampler
from .evaluation import Evaluation, Statistics
from .target import BatchTarget, GuidedBatchTarget

ADDRESSES = 1 << 32  # number of observations that a stream of random numbers can address
SQUARES = 2**12  # smallest ratio of the largest number of the dtype to the square of a noise level
CHANNEL_ADVICE = "Use method 'conditional' with a prior that was learned with e_step.method: conditional"


class LinearisedDenoiser:
    """The prior's denoiser linearised at x_t: one forward pass, then any number of VJPs, which are counted."""

    def __init__(self, prior: Prior, x_t: Tensor, sigma: Tensor) -> None:
        with torch.enable_grad():
            self._x_t = x_t.detach().requires_grad_()
            self._x_hat = prior.denoise(self._x_t, sigma)
        self._arithmetic = prior.arithmetic
        self.x_hat = self._x_hat.detach()
        self.vjps = 0

    def vjp(self, w: Tensor) -> Tensor:
        """Jᵀw, `(n, *event)`."""
        self.vjps += 1
        with self._arithmetic():
            return torch.autograd.grad(self._x_hat, self._x_t, w, retain_graph=True)[0]


@dataclass
class Posterior:
    """Base of the posterior methods. A subclass is a dataclass of its options and implements `evaluate`."""

    method: ClassVar[str]
    needs_linear: ClassVar[bool] = True  # whether the method needs y = A x + e with Gaussian noise
    reduces: ClassVar[bool] = False  # whether equivalent observations replace them (`Observations.reduced`)
    is_exact: ClassVar[bool] = False  # whether `sample` draws in closed form by default

    prior: Prior
    obs: Observations
    noise: Any = field(init=False, repr=False)  # Σ_y on the measured entries
    last_levels: Tensor = field(init=False, repr=False)  # (n,), the last noise level of draws for each observation

    def __post_init__(self) -> None:
        if self.needs_linear:
            require_linear_gaussian(self.obs, f"method {self.method!r}", CHANNEL_ADVICE)
        obs = in_precision_of(self.prior.mean, self.obs)
        require_prior(self.prior, obs)
        self.last_levels = last_levels(obs, self.prior.sigma_min)
        self.observe(obs.reduced() if self.reduces else obs)

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        """Estimate E[x | x_t, y] for x_t `(n, *event)`, one sample per observation, and record the cost."""
        raise NotImplementedError

    @in_default_modes
    def __call__(self, x_t: Tensor, sigma: Tensor | float) -> Tensor:
        """E[x | x_t, y] as a denoiser: x_t `(n, *event)` for n observations, sigma a scalar or one per sample."""
        x_t, sigma = require_state(x_t, sigma, self.prior.mean, type(self).__name__)
        if len(x_t) != len(self.obs):
            raise InputError(
                f"the posterior holds {count_of(len(self.obs), 'observation')}, x_t has {count_of(len(x_t), 'sample')}"
            )
        evaluation = self.evaluate(differentiable(x_t), differentiable(sigma))
        counted = Statistics.zeros(len(x_t), x_t.device)
        counted.add(evaluation)
        self.warn_of(counted, "estimate")
        return evaluation.x_hat

    def finish(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        """Make the last denoising of a draw, at its last level σ. The draw returns its `x_hat` for x_t `(n, *event)`.

        Default: E[x | x_t, y], which is within about σ of x_t. Methods whose estimate moves x_t further override
        this function.
        """
        return self.evaluate(x_t, sigma)

    def for_draw(self, sampler: Sampler, steps: int, last_level: float) -> Self:
        """Adapt the method to a sampler, its number of steps and the last noise level.

        Raises InputError if the method does not support the sampler.
        """
        return self

    def warn_of(self, statistics: Statistics, result: str = "draw") -> None:
        """Warn if the statistics show that systems which the method solves as exact were not solved.

        Args:
            statistics: The statistics of draws, or of one evaluation.
            result: What each of them belongs to, for the message.
        """

    def capturable(self, sampler: Sampler) -> bool:
        """Whether a step of this sampler can be captured: it must not synchronise with the device."""
        # particles are weighted by N(0, Σ_y); factoring a Σ_y that is not diagonal synchronises to check for failure
        return not sampler.needs_likelihood or self.noise.is_diagonal

    @property
    def likelihood_iterations(self) -> int:
        """Products with the system matrix that an estimate of log q(y | x_t) may take."""
        return 1

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, index: Any) -> Self:
        """Select observations; the method stays the same."""
        new, index = copy.copy(self), as_index(index)
        new.last_levels = take(self.last_levels, index)
        new.observe(self.obs[index])
        return new

    def observe(self, obs: Observations) -> None:
        """Set the observations and everything derived from them."""
        self.obs, self.noise = obs, obs.noise

    @overload
    def sample(
        self,
        draws: int | None = ...,
        steps: int = ...,
        sampler: str | Sampler | None = ...,
        seed: int = ...,
        *,
        return_stats: Literal[False] = ...,
        **options: Any,
    ) -> Tensor: ...
    @overload
    def sample(
        self,
        draws: int | None = ...,
        steps: int = ...,
        sampler: str | Sampler | None = ...,
        seed: int = ...,
        *,
        return_stats: Literal[True],
        **options: Any,
    ) -> tuple[Tensor, Statistics]: ...
    @in_default_modes
    @torch.no_grad()
    def sample(
        self,
        draws: int | None = None,
        steps: int = DEFAULT_STEPS,
        sampler: str | Sampler | None = None,
        seed: int = 0,
        *,
        lap: int = 0,
        index: Tensor | None = None,
        batch_size: int | None = None,
        first_draw: int = 0,
        return_stats: bool = False,
        captured: bool = False,
        progress: bool | None = None,
        **options: Any,
    ) -> Tensor | tuple[Tensor, Statistics]:
        """Draw from the posterior: one draw per observation, `(n, *event)`; with `draws=k`, k draws, `(k, n, *event)`.

        Args:
            draws: Draws per observation. Default: one, without a leading axis.
            steps: Sampling steps.
            sampler: A name of `samplers.SAMPLERS` or a sampler object. Default: "ddpm2"; for a Gaussian prior exact
                draws, which take no steps and no options.
            seed: Seed of the random numbers.
            lap: The lap, within a run.
            index: (n,). Addresses of the observations in the random stream, if these are part of a larger set. Default:
                0 … n−1.
            batch_size: Number of draws (or particles) per batch; the draws do not depend on it. Default: as many as
                suit the device.
            first_draw: Number of the first draw, the third part of its address.
            return_stats: Also return `Statistics`.
            captured: Replay a CUDA graph of one step (`Sampler.draw`), if the step can be captured.
            progress: Whether to show a progress bar. Default: on a terminal, if it takes more than a few seconds.
            options: Options of the sampler (`eta`, `corrections`, `tau`, `particles`).
        """
        n, k, index = self._addresses(draws, index, batch_size, first_draw)
        if sampler is None and self.is_exact:
            require_count(steps, "steps")
            require_no_options(options)
            numbers = range(first_draw, first_draw + k)
            x = torch.stack([self.exact_draw(d, seed, lap, index, batch_size) for d in numbers])
            counts = Statistics.zeros(n, x.device).map(lambda t: t.expand(k, n).clone())
        else:
            method = get_sampler(DEFAULT_SAMPLER if sampler is None else sampler, **options)
            streams = Stream(seed, "posterior", lap), Stream(seed, "posterior probe", lap)
            x, counts = self._diffuse(method, steps, k, first_draw, index, streams, batch_size, captured, progress)
            self.warn_of(counts)
        if draws is None:
            x, counts = x[0], counts.map(lambda t: t[0])
        return (x, counts) if return_stats else x

    def _diffuse(
        self,
        sampler: Sampler,
        steps: int,
        k: int,
        first_draw: int,
        index: Tensor,
        streams: tuple[Stream, Stream],
        batch_size: int | None,
        captured: bool,
        progress: bool | None,
    ) -> tuple[Tensor, Statistics]:
        """Make k draws per observation with a sampler, `(k, n, *event)`; the arguments are those of `sample`.

        Args:
            streams: Sources of the noise, and of the random signs of likelihood estimates.
        """
        require_range(self.prior)
        captured = captured and self.capturable(sampler)
        # draws d with the same d // picks come from one set of particles; the particles of a set stay in one batch
        first_set, first_pick = divmod(first_draw, sampler.picks)
        sets, particles = -(-(first_pick + k) // sampler.picks), sampler.particles
        n, (stream, probes) = len(self.obs), streams
        at_once = max(1, (batch_size or self.prior.batch_for(sets * n * particles)) // particles)
        total = sets * n * particles * steps
        with evaluation_mode(self.prior), Progress("posterior draws", total, "sample steps", progress) as bar:
            x = self.prior.mean.new_empty(sets * n, sampler.picks, *self.prior.event_shape)
            rows, statistics = [], []
            for row, last_level in self._batches(sets, at_once):
                whole = sets == 1 and particles == 1 and len(row) == n
                some = self if whole else self[(row % n).repeat_interleave(particles)]
                some = some.for_draw(sampler, steps, last_level)
                address, number = index[row % n], first_set + row // n
                counted = Statistics.zeros(len(row) * particles, self.obs.y.device)
                target = some.target(sampler, counted, address, number, probes)
                sigmas = self.prior.sigmas(steps, last_level)
                drawn = sampler.draw(
                    target, self.prior.mean, address, sigmas, stream, draws=number, progress=bar, captured=captured
                )
                x[row.to(x.device)] = drawn.x
                rows.append(row)
                statistics.append(counted.per_set(particles, drawn))
        # (sets·n, picks, *event) → (draws, n, *event)
        x = x.unflatten(0, (sets, n)).movedim(2, 1).flatten(0, 1)[first_pick : first_pick + k]
        return x, Statistics.concatenate(statistics, torch.cat(rows)).per_draw(k, n, sampler.picks, first_pick)

    def exact_draw(self, draw: int, seed: int, lap: int, index: Tensor, batch_size: int | None) -> Tensor:
        """Make one draw per observation in closed form, `(n, *event)`. Posteriors with `is_exact` implement this.

        Args:
            draw: Number of the draw.
            index: (n,). Addresses of the observations.
        """
        raise NotImplementedError

    def _batches(self, sets: int, at_once: int) -> Iterator[tuple[Tensor, float]]:
        """Split the rows 0 … sets · n − 1 into batches; yields the rows of each batch and their last noise level."""
        levels = self.last_levels.repeat(sets)
        for level in levels.unique().tolist():
            for rows in (levels == level).nonzero().flatten().split(at_once):
                yield rows, level

    def _addresses(
        self, draws: int | None, index: Tensor | None, batch_size: int | None, first_draw: int
    ) -> tuple[int, int, Tensor]:
        """Check arguments of `sample`; returns the numbers of observations and draws, and the index `(n,)`."""
        for value, name in ((draws, "draws"), (batch_size, "batch_size")):
            if value is not None:
                require_count(value, name)
        if not isinstance(first_draw, int) or first_draw < 0:
            raise InputError(f"first_draw must be an integer of at least 0, got {first_draw!r}")
        n = len(self.obs)
        if index is None:
            return n, draws or 1, torch.arange(n)
        index = torch.as_tensor(index).cpu()
        if index.shape != (n,) or index.dtype != torch.int64 or not ((index >= 0) & (index < ADDRESSES)).all():
            raise InputError(
                f"index must be {count_of(n, 'address', 'addresses')} from 0 to {ADDRESSES - 1} (int64), one per "
                f"observation, got {index.dtype} of shape {tuple(index.shape)}"
            )
        return n, draws or 1, index

    def target(self, sampler: Sampler, counted: Statistics, index: Tensor, draws: Tensor, probes: Stream) -> Target:
        """Make the target of a batch whose rows are these observations, repeated for each particle.

        Args:
            sampler: The sampler of the draw.
            counted: The statistics that evaluations are added to.
            index: (n,). Addresses of the observations, for the random signs of likelihood estimates.
            draws: (n,). Numbers of the draws, for the same.
            probes: Source of those signs.
        """
        if not sampler.needs_likelihood:
            return BatchTarget(self.evaluate, self.finish, counted).target()
        y, device = self.obs.y, self.obs.y.device
        u = probes.uniform(index.to(device), tuple(y.shape[1:]), draw=draws.to(device))
        # all particles of a draw share a probe, so the twist is a fixed function of x_t
        probe = torch.where(u < 0.5, -1, 1).to(self.prior.mean).repeat_interleave(sampler.particles, 0)
        weighted = GuidedBatchTarget(
            self.evaluate, self.finish, counted, self.prior, self.obs, probe, self.likelihood_iterations
        )
        return weighted.target()


def require_prior(prior: Prior, obs: Observations) -> None:
    """Raise InputError unless samples of the prior have the shape of x and its Jacobian can be computed."""
    require_like(obs.y.new_empty(1, *obs.x_shape), "y", prior.mean, type(prior).__name__)
    cov = prior._cov
    tensors = [*prior.state_dict(keep_vars=True).values(), *(cov._tensors.values() if cov is not None else ())]
    if any(t.is_inference() for t in tensors):
        raise InputError(
            f"the {type(prior).__name__} was made under torch.inference_mode(), so its Jacobian cannot be computed; "
            "make or load it outside"
        )


def require_range(prior: Prior) -> None:
    """Raise InputError if squares of the noise levels come close to overflowing in the dtype of the prior."""
    limit = math.sqrt(torch.finfo(prior.mean.dtype).max / SQUARES)
    if prior.sigma_max > limit:
        raise InputError(
            f"sigma_max of this {type(prior).__name__} is {prior.sigma_max:.1e}; in {prior.mean.dtype} posterior draws "
            f"need noise levels up to {limit:.1e}: use other units of x, or float64"
        )


def require_positive(value: float, name: str) -> None:
    """Raise InputError unless the value is a positive finite number."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
        raise InputError(f"{name} must be positive and finite, got {value!r}")
