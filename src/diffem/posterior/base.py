r"""Prior × observations → denoiser.

A posterior method estimates E[x | x_t, y] = x̂ + σ_t² ∇ log q(y | x_t) from the prior's x̂ = E[x | x_t] and, for most methods, its
Jacobian J = ∂x̂/∂x_t through vector–Jacobian products. What it returns is again a denoiser, one sample per observation, so
every sampler works with every method.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Self, overload

import torch
from torch import Tensor

from ..core.errors import CastWarning, InputError
from ..core.modes import differentiable, in_own_modes
from ..core.progress import Progress
from ..core.randomness import Stream
from ..core.shapes import noise_level, require_batch, require_event, require_precision, require_same_dtype
from ..linalg import Diagonal, Isotropic, Solution, System
from ..observations import Observations
from ..observations.scale import smallest_noise
from ..priors.base import Prior, evaluation_mode
from ..samplers import DEFAULT_SAMPLER, DEFAULT_STEPS, TDS, Sampler, draw, get_sampler
from ..samplers.base import Denoise
from ..samplers.schedule import lowest_level

# Samplers whose draws are weighted, and the function that draws with them: `__init__.py` registers that of `twisted.py`.
WEIGHTED: dict[type[TDS], Callable[..., tuple[Tensor, Statistics]]] = {}


class Linearised:
    """The prior at x_t: one forward pass, then as many vector–Jacobian products as are asked for, counted."""

    def __init__(self, prior: Prior, x_t: Tensor, sigma: Tensor) -> None:
        with torch.enable_grad():
            self._x_t = differentiable(x_t).detach().requires_grad_()
            self._x_hat = prior(self._x_t, differentiable(sigma))
        self._arithmetic = prior.arithmetic
        self.x_hat = self._x_hat.detach()
        self.vjps = 0

    def vjp(self, w: Tensor) -> Tensor:
        """Jᵀw, `(n, *event)`."""
        self.vjps += 1
        with self._arithmetic():
            return torch.autograd.grad(self._x_hat, self._x_t, w, retain_graph=True)[0]


@dataclass
class Evaluation:
    """One evaluation of a posterior denoiser and what it took."""

    x_hat: Tensor  # (n, *event), the estimate of E[x | x_t, y]
    solution: Solution | None = None
    forwards: int = 1
    vjps: int = 0
    # what a weighted draw needs besides (see `likelihood.py`)
    prior: Tensor | None = None  # (n, *event), the prior's x̂ = E[x | x_t]
    system: System | None = None  # M = Σ_y + A V Aᵀ, where the method has one
    vjps_per_product: int = 0  # vector–Jacobian products in a product with M
    log_likelihood: Tensor | None = None  # (n,) log q(y | x_t), where the method knows it by itself


@dataclass
class Statistics:
    """What a draw took, per sample; `(n,)` tensors, or `(draws, n)`."""

    evaluations: Tensor
    forwards: Tensor
    vjps: Tensor
    iterations: Tensor  # solver iterations, summed over evaluations
    residuals: Tensor  # largest relative residual a solve ended with
    guards: Tensor  # curvature guards (or eigenvalues refused) and solves that diverged, summed over evaluations
    effective: Tensor  # smallest effective number of particles on the way; 0 for a sampler without
    resamplings: Tensor  # how often particles were resampled

    @classmethod
    def zeros(cls, n: int, device: torch.device) -> Statistics:
        def count() -> Tensor:
            return torch.zeros(n, dtype=torch.int64, device=device)

        residuals = torch.zeros(n, dtype=torch.float32, device=device)
        return cls(count(), count(), count(), count(), residuals, count(), torch.zeros_like(residuals), count())

    def add(self, evaluation: Evaluation) -> None:
        """In place, so that a captured step counts at every replay."""
        self.evaluations += 1
        self.forwards += evaluation.forwards
        self.vjps += evaluation.vjps
        if evaluation.solution is not None:
            self.iterations += evaluation.solution.iterations
            self.guards += evaluation.solution.guards
            residual = evaluation.solution.residual.to(self.residuals)
            torch.maximum(self.residuals, residual, out=self.residuals)

    def counting(self, evaluate: Callable[[Tensor, Tensor], Evaluation]) -> Denoise:
        """`evaluate` as a denoiser whose evaluations are added to these statistics."""

        def denoise(x_t: Tensor, sigma: Tensor) -> Tensor:
            evaluation = evaluate(x_t, sigma)
            self.add(evaluation)
            return evaluation.x_hat

        return denoise

    def bookmark(self) -> Callable[[], None]:
        """Remember the counts; the function returned goes back to them, in place."""
        kept = self.map(torch.clone)

        def back() -> None:
            for name in self.__dataclass_fields__:
                getattr(self, name).copy_(getattr(kept, name))

        return back

    @classmethod
    def concatenate(cls, parts: list[Statistics]) -> Statistics:
        return cls(**{name: torch.cat([getattr(part, name) for part in parts]) for name in cls.__dataclass_fields__})

    def map(self, function: Callable[[Tensor], Tensor]) -> Statistics:
        return Statistics(**{name: function(getattr(self, name)) for name in self.__dataclass_fields__})


@dataclass
class Posterior:
    """Base of the methods: a subclass is a dataclass of its options and implements `evaluate`."""

    method: ClassVar[str]

    prior: Prior
    obs: Observations
    noise: Any = field(init=False, repr=False)  # Σ_y on the measured entries
    sigma_min: float = field(init=False, repr=False)  # the last noise level of a draw

    def __post_init__(self) -> None:
        require_event(self.obs.y.new_zeros(1, *self.obs.x_shape), self.prior.event_shape, type(self.prior).__name__)
        require_precision(self.prior.mean.dtype, f"the {type(self.prior).__name__}")
        self.obs = _in_precision_of(self.prior, self.obs)
        require_same_dtype(self.obs.y, "y", self.prior.mean, f"the {type(self.prior).__name__}")
        cov = self.prior._cov
        tensors = [*self.prior.state_dict(keep_vars=True).values(), *(cov._tensors.values() if cov is not None else ())]
        if any(t.is_inference() for t in tensors):
            raise InputError(
                f"the {type(self.prior).__name__} was made under torch.inference_mode(), so its Jacobian cannot be computed; "
                "make or load it outside"
            )
        self.observe(self.obs)
        self.sigma_min = lowest_level(self.prior.sigma_min, smallest_noise(self.obs))

    def sigmas(self, steps: int) -> Tensor:
        """The noise levels of a draw, `(steps + 1,)`: the prior's, down to noise that lies far below them."""
        return self.prior.sigmas(steps, self.sigma_min)

    def evaluate(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        """E[x | x_t, y] and what it took; x_t `(n, *event)`, one sample per observation."""
        raise NotImplementedError

    @in_own_modes
    def __call__(self, x_t: Tensor, sigma: Tensor | float) -> Tensor:
        """E[x | x_t, y] as a denoiser: x_t `(n, *event)` for n observations, sigma a scalar or one per sample."""
        require_event(require_batch(x_t, "x_t"), self.prior.event_shape, type(self).__name__)
        if len(x_t) != len(self.obs):
            raise InputError(f"the posterior holds {len(self.obs)} observations, x_t has {len(x_t)} samples")
        require_same_dtype(x_t, "x_t", self.prior.mean, "the prior")
        return self.evaluate(x_t, noise_level(sigma, x_t)).x_hat

    def finish(self, x_t: Tensor, sigma: Tensor) -> Evaluation:
        """The last denoising of a draw, at σ_min; its `x_hat` is what the draw returns for the state x_t `(n, *event)`.

        By default E[x | x_t, y], within about σ_min of x_t. A method whose estimate moves x_t further than that overrides this.
        """
        return self.evaluate(x_t, sigma)

    def for_draw(self, sampler: Sampler, steps: int) -> Self:
        """The method as a draw of `steps` steps by this sampler uses it; the same unless its strength depends on the step."""
        return self

    def capturable(self, sampler: Sampler) -> bool:
        """Whether a step of this sampler reads nothing back from the device."""
        # particles are weighed by N(0, Σ_y); factoring a Σ_y that is not diagonal reads back whether it succeeded
        return not isinstance(sampler, TDS) or isinstance(self.noise, Isotropic | Diagonal)

    def __len__(self) -> int:
        return len(self.obs)

    def __getitem__(self, index: Any) -> Self:
        """The same method for some of the observations."""
        new = copy.copy(self)
        new.observe(self.obs[index])
        return new

    def observe(self, obs: Observations) -> None:
        """Set the observations and what is derived from them."""
        self.obs, self.noise = obs, obs.noise

    @overload
    def sample(
        self,
        draws: int | None = ...,
        steps: int = ...,
        sampler: str | Sampler = ...,
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
        sampler: str | Sampler = ...,
        seed: int = ...,
        *,
        return_stats: Literal[True],
        **options: Any,
    ) -> tuple[Tensor, Statistics]: ...
    @in_own_modes
    @torch.no_grad()
    def sample(
        self,
        draws: int | None = None,
        steps: int = DEFAULT_STEPS,
        sampler: str | Sampler = DEFAULT_SAMPLER,
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
        """One draw per observation, `(n, *event)`; with `draws=k`, k of them, `(k, n, *event)`.

        sampler: a name of `samplers.SAMPLERS` or an object; `options` go to it (`eta`, `corrections`, `tau`, `particles`).
        lap, index: part of the address of the random numbers; `index` `(n,)` names the observations when these are some of
            a larger set, 0 … n−1 otherwise. first_draw: the number of the first draw, likewise.
        batch_size: how many are drawn at a time, as many as suit the device when absent; it does not change the random numbers.
        return_stats: also return `Statistics`. captured: see `samplers.draw`; steps that cannot be captured are not.
        """
        if draws is not None and (not isinstance(draws, int) or draws < 1):
            raise InputError(f"draws must be a positive integer, got {draws!r}")
        n, k = len(self.obs), draws or 1
        index = torch.arange(n) if index is None else index.cpu()
        if index.shape != (n,):
            raise InputError(f"index must name {n} observations, got shape {tuple(index.shape)}")
        method, sigmas = get_sampler(sampler, **options), self.sigmas(steps)
        captured = captured and self.capturable(method)
        if isinstance(method, TDS):
            x, total = WEIGHTED[TDS](
                self, method, k, steps, seed, lap=lap, index=index, batch_size=batch_size, first_draw=first_draw,
                captured=captured, progress=progress,
            )  # fmt: skip
            if draws is not None:
                x, total = x.reshape(k, n, *x.shape[1:]), total.map(lambda t: t.reshape(k, n))
            return (x, total) if return_stats else x
        stream = Stream(seed, "posterior", lap)
        rows = torch.arange(k * n)
        parts, statistics = [], []
        with evaluation_mode(self.prior), Progress("posterior draws", k * n * steps, "sample steps", progress) as bar:
            for row in rows.split(batch_size or self.prior.batch_for(k * n)):
                whole = k == 1 and len(row) == n
                some = (self if whole else self[row % n]).for_draw(method, steps)
                counted = Statistics.zeros(len(row), self.obs.y.device)
                x = draw(
                    counted.counting(some.evaluate),
                    self.prior.mean,
                    index[row % n],
                    sigmas,
                    method,
                    stream,
                    draws=first_draw + row // n,
                    finish=counted.counting(some.finish),
                    progress=bar,
                    captured=captured,
                    bookmark=counted.bookmark,
                )
                parts.append(x)
                statistics.append(counted)
        x = torch.cat(parts)
        total = Statistics.concatenate(statistics)
        if draws is not None:
            x = x.reshape(k, n, *x.shape[1:])
            total = total.map(lambda t: t.reshape(k, n))
        return (x, total) if return_stats else x


def _in_precision_of(prior: Prior, obs: Observations) -> Observations:
    """float64 observations, NumPy's default, in the float32 of a prior; the others as they are."""
    if (obs.y.dtype, prior.mean.dtype) != (torch.float64, torch.float32):
        return obs
    warnings.warn(
        "the observations are in float64, the prior in float32: they are converted (obs.to(torch.float32) does so silently)",
        CastWarning,
        stacklevel=5,
    )
    return obs.to(torch.float32)
