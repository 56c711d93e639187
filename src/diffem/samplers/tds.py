r"""Twisted diffusion sampling: many particles per draw, with weights that correct the error of the posterior method.

A posterior method guides x_t by an approximation q(y | x_t) of the likelihood, the *twist*, and its draws have the
error of this approximation. Here (Wu et al. 2023) P particles start at x₁ and move by the guided DDPM kernel
q(x_s | x_t, y) instead of the prior's p(x_s | x_t). Each has a weight w, which every step updates:

    w ← w · p(x_s | x_t) q(y | x_s) / (q(x_s | x_t, y) q(y | x_t)),

so that the weighted particles follow p(x_s) q(y | x_s) for any earlier twist: the twists along a path cancel, except
the last. When the effective number of particles 1/Σw² falls below `threshold`·P, they are resampled (systematically)
and get equal weights.

The last factor is therefore the only one that must be right. A path of the prior ends at x_t ~ p(x_t), t = σ_min, and
its draw is x = D(x_t), D being the prior's denoiser. Let π be the law of that x, the law `prior.sample` draws from,
which differs from the prior's by less than σ_min. With the likelihood of *the point that is returned* in the place of
the last twist, the mean of any f over the particles tends to

    ∫ f(D(x_t)) p(y | D(x_t)) p(x_t) dx_t / ∫ p(y | D(x_t)) p(x_t) dx_t = ∫ f(x) p(y | x) π(dx) / ∫ p(y | x) π(dx),

which is the posterior of π, for every noise level and every twist. Therefore −½ (y − A x)ᵀ Σ_y⁻¹ (y − A x) is computed
at x = D(x_t), without any solve, and the draw returns x. (With E[x | x_t, y] instead of D(x_t), y would count twice.)
Earlier twists may be any positive functions. A good twist keeps the weights equal; an unconverged solve, an inexact
determinant or a wrong factor reduces the effective number of particles. So does noise below σ_min: the last weights
then select particles from a spread of σ_min with a likelihood of width σ_y, and m values cost about a factor (1 +
σ_min²/σ_y²)^{m/2}.

A draw is **one** particle, picked by its final weight. Particles share ancestors, so several picks from one set are not
independent draws. With `picks` a set yields several draws nevertheless, which is efficient for EM, since EM averages
over draws.

Second order extrapolates the prior's kernel as in `ddim.py` and moves the guided one by as much, so the weights correct
towards the law of `ddpm2`. That kernel depends on the previous step and the twist does not, so it loses less variance
in few steps but needs more particles (about three times as many on one of the 25-Gaussian problems), so first order is
the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.cuda_graphs import State
from ..core.errors import InputError
from ..core.progress import Progress
from ..core.randomness import Stream
from ..linalg.inner import accumulate_dtype, dot
from .base import DrawBatch, Guide, Target, require_levels, walk
from .ddim import DDIM


class TDS(DDIM):
    """Twisted diffusion sampling (TDS, Wu et al. 2023): weighted particles correct the error of a posterior method.

    Without observations all weights are equal, and a sample of the prior is that of `ddpm` (`ddpm2`).

    Args:
        particles: P, the number of particles per set.
        threshold: Resample if the effective number of particles falls below this fraction of P.
        order: Order of the DDPM step, 1 or 2.
        picks: Draws that are picked from one set of particles.
    """

    name: ClassVar[str] = "tds"
    needs_likelihood: ClassVar[bool] = True

    def __init__(self, particles: int = 16, threshold: float = 0.5, order: int = 1, picks: int = 1) -> None:
        super().__init__(eta=1.0, order=order)
        for name, value in (("particles", particles), ("picks", picks)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a positive integer, got {value!r}")
        if picks > particles:
            raise InputError(
                f"picks must not exceed particles, got {count_of(picks, 'pick')} from {count_of(particles, 'particle')}"
            )
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold must lie in [0, 1], got {threshold}")
        self.particles, self.threshold, self.picks = particles, float(threshold), picks

    def draw(
        self,
        target: Target,
        mean: Tensor,
        index: Tensor,
        sigmas: Tensor,
        stream: Stream,
        *,
        draws: Tensor | None = None,
        progress: Progress | None = None,
        captured: bool = False,
    ) -> DrawBatch:
        """Draw from n sets of P particles; the rows of a set are adjacent.

        Particle p of draw d has the random numbers of draw dP + p.
        """
        if target.guide is None or target.end is None:
            return super().draw(target, mean, index, sigmas, stream, draws=draws, progress=progress, captured=captured)
        require_levels(sigmas)
        device, n = mean.device, len(index)
        index = index.to(device)
        draws = torch.zeros_like(index) if draws is None else draws.to(device)
        sets = ParticleSets(self, target.guide, mean, index, draws, stream)
        table = self.table(sigmas.double()).to(mean)
        x = mean + sigmas[0].to(mean) * sets.normal(0)
        nothing = torch.zeros(n, self.particles, dtype=sets.dtype, device=device)
        smallest = torch.full((n,), float(self.particles), dtype=sets.dtype, device=device)
        state: State = (x, torch.zeros_like(x), nothing, nothing, smallest, torch.zeros_like(index))
        rows = n * self.particles
        state = walk(sets.step, state, table, rows, captured=captured, progress=progress, snapshot=target.snapshot)

        end = target.end(state[0], sigmas[-1].to(mean))
        w = normalised(sets.reweight(state, end.log_likelihood))
        picked = systematic(w, sets.uniform(len(table)), self.picks)
        x = end.x[sets.first_row + picked]
        return DrawBatch(x, torch.minimum(state[4], 1 / w.square().sum(-1)).float(), state[5])


class ParticleSets:
    """The step of n sets of P particles, and their random numbers.

    The state of a step holds x_t and the prior's last x̂, `(n·P, *event)`; log w and the log-twist at x_t, `(n, P)`;
    the smallest effective number of particles and the number of resamplings, `(n,)`.
    """

    def __init__(
        self,
        sampler: TDS,
        guide: Callable[[Tensor, Tensor], Guide],
        mean: Tensor,
        index: Tensor,
        draws: Tensor,
        stream: Stream,
    ) -> None:
        count, n, device = sampler.particles, len(index), mean.device
        self._sampler, self._guide, self._mean = sampler, guide, mean
        self._index, self._draws, self._stream = index, draws, stream
        self._resampling = Stream(stream.seed, f"{stream.purpose} resampling", stream.lap)
        self._particle = torch.arange(count, device=device)
        self._row_index = index.repeat_interleave(count)
        self._row_draw = (draws.unsqueeze(1) * count + self._particle).flatten()
        self.first_row = torch.arange(0, n * count, count, device=device).unsqueeze(1)  # (n, 1), of each set
        self.dtype = accumulate_dtype(device)  # dtype of the weights

    def normal(self, step: int | Tensor) -> Tensor:
        """Standard normal noise of all particles, `(n·P, *event)`."""
        shape, dtype = tuple(self._mean.shape), self._mean.dtype
        return self._stream.normal(self._row_index, shape, step=step, draw=self._row_draw, dtype=dtype)

    def uniform(self, step: int | Tensor) -> Tensor:
        """One uniform number per set, `(n,)`, for systematic resampling."""
        return self._resampling.uniform(self._index, (), step=step, draw=self._draws, dtype=self.dtype)

    def reweight(self, state: State, log_twist: Tensor) -> Tensor:
        """Compute log w `(n, P)` from the twist `(n·P,)` at the current x_t."""
        return state[2] + (log_twist.to(self.dtype).reshape(state[2].shape) - state[3])

    def step(self, state: State, i: int | Tensor, row: Tensor) -> State:
        """Weight the particles, resample those of poor sets, and move all of them by the guided kernel."""
        sigma_t, keep, move, fresh, ahead = row
        x_t, last_prior, log_w, _, smallest, resamplings = state
        n, count = log_w.shape
        guide = self._guide(x_t, sigma_t)
        log_w = self.reweight(state, guide.log_twist)
        w = normalised(log_w)
        effective = 1 / w.square().sum(-1)
        poor = effective < self._sampler.threshold * count
        ancestor = torch.where(poor.unsqueeze(1), systematic(w, self.uniform(i), count), self._particle)
        rows = (self.first_row + ancestor).flatten()
        x_t, prior, guided, last_prior = (part[rows] for part in (x_t, guide.prior, guide.guided, last_prior))
        log_twist = guide.log_twist.to(self.dtype)[rows].reshape(n, count)
        log_w = torch.where(poor.unsqueeze(1), 0, log_w)

        target = guided + ahead * (prior - last_prior)
        z = self.normal(1 + i)
        # both kernels have the variance `fresh`²: log p − log q depends only on the difference of their means
        apart = move / fresh * (guided - prior)
        log_ratio = -(dot(z, apart) + 0.5 * dot(apart, apart)).reshape(n, count)
        x_s = keep * x_t + move * target + fresh * z
        smallest = torch.minimum(smallest, effective)
        return x_s, prior, log_w + log_ratio, log_twist, smallest, resamplings + poor


def normalised(log_w: Tensor) -> Tensor:
    """Normalise weights `(n, P)`.

    A particle whose weight is not finite gets weight 0; if no weight is finite, all weights are equal.
    """
    log_w = torch.nan_to_num(log_w, nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
    lost = (log_w == -math.inf).all(-1, keepdim=True)
    return torch.softmax(torch.where(lost, 0, log_w), -1)


def systematic(w: Tensor, u: Tensor, count: int) -> Tensor:
    """Resample systematically: particle i appears ⌊count · wᵢ⌋ or ⌈count · wᵢ⌉ times.

    Args:
        w: (n, P). Normalised weights.
        u: (n,). Uniform numbers.
        count: Number of particles to select.

    Returns:
        Indices of particles, `(n, count)`.
    """
    points = (torch.arange(count, device=w.device, dtype=w.dtype) + u.to(w).unsqueeze(1)) / count
    return torch.searchsorted(w.cumsum(-1), points).clamp(max=w.shape[1] - 1)
