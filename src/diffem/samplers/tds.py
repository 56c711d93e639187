r"""Twisted diffusion sampling (Wu et al. 2023): many particles per draw, weighted so that the guide's error is paid back.

A posterior method guides x_t by an approximation q(y | x_t) of the likelihood, the *twist*. Guiding alone inherits its error. Here
P particles start at x₁ and move by the guided DDPM kernel q(x_s | x_t, y) instead of the prior's p(x_s | x_t); each carries

    w ← w · p(x_s | x_t) q(y | x_s) / (q(x_s | x_t, y) q(y | x_t)),

which makes the weighted particles follow p(x_s) q(y | x_s) whatever the twist was before: the twists of a path cancel, except the
last. When the effective number of particles 1/Σw² falls below `threshold`·P, they are resampled (systematically) and start again with
equal weights.

The last factor is therefore the only one that must be right. A path of the prior ends at x_t ~ p(x_t), t = σ_min, and its draw is
x = D(x_t), D being the prior's denoiser. Let π be the law of that x, the law `prior.sample` draws from, which differs from the prior's by
less than σ_min. With the likelihood of *the point that is returned* in the place of the last twist, the mean of any f over the particles tends to

    ∫ f(D(x_t)) p(y | D(x_t)) p(x_t) dx_t / ∫ p(y | D(x_t)) p(x_t) dx_t = ∫ f(x) p(y | x) π(dx) / ∫ p(y | x) π(dx),

which is the posterior of π, for every noise level and every twist. So −½ (y − A x)ᵀ Σ_y⁻¹ (y − A x) is computed at x = D(x_t), without
any solve, and x is what a draw returns. (With E[x | x_t, y] in the place of D(x_t), y would count twice.) Before that, a twist may be any
positive function: the better it is, the more equal the weights; a solve that has not converged, an inexact determinant or a wrong
factor costs particles. So does noise below σ_min: the last weights then select particles from a spread of σ_min with a likelihood of
width σ_y, and m values cost about a factor (1 + σ_min²/σ_y²)^{m/2}.

A draw is **one** particle, picked by its final weight. Particles share ancestors and are not independent draws, so one is all that is taken,
unless `picks` says otherwise: EM, which averages over draws, gets more out of the same particles.

Second order extrapolates the prior's kernel as in `ddim.py` and moves the guided one by as much, so the weights correct towards the law
of `ddpm2`. That kernel remembers the step before, which the twist does not know of: it loses less variance in few steps but takes
more particles (about three times as many on one of the 25-Gaussian problems), so first order is the default.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import torch
from torch import Tensor

from ..core.cuda_graphs import Bookmark, State, no_bookmark, walk
from ..core.errors import InputError
from ..core.progress import Progress
from ..core.randomness import Stream
from ..linalg.inner import accumulate_dtype, dot
from .ddim import DDIM


class Guide(NamedTuple):
    """The prior and its twist at x_t, one row per particle."""

    prior: Tensor  # (n·P, *event) E[x | x_t]
    guided: Tensor  # (n·P, *event) E[x | x_t, y] as the posterior method has it
    log_twist: Tensor  # (n·P,) log q(y | x_t), up to a constant per observation


class Ended(NamedTuple):
    """Where the particles end, one row per particle."""

    x: Tensor  # (n·P, *event) what a draw returns, D(x_t)
    log_likelihood: Tensor  # (n·P,) log p(y | x), up to a constant per observation


Twist: TypeAlias = Callable[[Tensor, Tensor], Guide]  # x_t (n·P, *event), sigma ()
Finish: TypeAlias = Callable[[Tensor, Tensor], Ended]


class TDS(DDIM):
    """particles: P; threshold: resample below this fraction of P; order: 1 or 2, of the DDPM step; picks: draws from one set of particles.

    It needs observations. Without them there is nothing to weigh, and a prior's draw is that of `ddpm` (`ddpm2`).
    """

    name: ClassVar[str] = "tds"

    def __init__(self, particles: int = 16, threshold: float = 0.5, order: int = 1, picks: int = 1) -> None:
        super().__init__(eta=1.0, order=order)
        for name, value in (("particles", particles), ("picks", picks)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} must be a positive integer, got {value!r}")
        if picks > particles:
            raise InputError(f"picks must not be more than the particles, got {picks} of {particles}")
        if not 0 <= threshold <= 1:
            raise InputError(f"threshold must lie in [0, 1], got {threshold}")
        self.particles, self.threshold, self.picks = particles, float(threshold), picks


@dataclass
class Weighted:
    """What was picked for each observation, and what became of its particles."""

    x: Tensor  # (n, picks, *event)
    effective: Tensor  # (n,) the smallest effective number of particles on the way
    resamplings: Tensor  # (n,)


def normalised(log_w: Tensor) -> Tensor:
    """Weights `(n, P)` that sum to 1. A particle whose weight is not a number gets none; if all are lost they count alike."""
    log_w = torch.nan_to_num(log_w, nan=-math.inf, posinf=-math.inf, neginf=-math.inf)
    lost = (log_w == -math.inf).all(-1, keepdim=True)
    return torch.softmax(torch.where(lost, 0, log_w), -1)


def systematic(w: Tensor, u: Tensor, count: int) -> Tensor:
    """Particles `(n, count)`: the i-th appears ⌊count · wᵢ⌋ or ⌈count · wᵢ⌉ times. w: `(n, P)` normalised, u: `(n,)` uniform."""
    points = (torch.arange(count, device=w.device, dtype=w.dtype) + u.to(w).unsqueeze(1)) / count
    return torch.searchsorted(w.cumsum(-1), points).clamp(max=w.shape[1] - 1)


@torch.no_grad()
def draw_weighted(
    twist: Twist,
    finish: Finish,
    mean: Tensor,
    index: Tensor,
    sigmas: Tensor,
    sampler: TDS,
    stream: Stream,
    *,
    draws: Tensor,
    progress: Progress | None = None,
    captured: bool = False,
    bookmark: Bookmark = no_bookmark,
) -> Weighted:
    """One micro-batch of n sets of P particles, the rows of a set next to each other.

    twist: the prior and the twist for all n·P rows. finish: the last denoising and the likelihood, likewise. mean, sigmas, stream, progress, captured and bookmark: as in `run.draw`.
    index, draws: `(n,)` the address of each set; particle p of set d has the normal numbers of draw dP + p.
    """
    count, n, shape = sampler.particles, len(index), tuple(mean.shape)
    index, draws = index.to(mean.device), draws.to(mean.device)
    particle = torch.arange(count, device=mean.device)
    row_index, row_draw = index.repeat_interleave(count), (draws.unsqueeze(1) * count + particle).flatten()
    first_row = torch.arange(0, n * count, count, device=mean.device).unsqueeze(1)
    chances = Stream(stream.seed, f"{stream.purpose} resampling", stream.lap)
    dtype = accumulate_dtype(mean.device)

    def normal(step: int | Tensor) -> Tensor:
        return stream.normal(row_index, shape, step=step, draw=row_draw, dtype=mean.dtype)

    def reweighted(state: State, log_twist: Tensor) -> Tensor:
        """log w `(n, P)` once the twist `(n·P,)` at the place reached is known."""
        return state[2] + (log_twist.to(dtype).reshape(n, count) - state[3])

    def step(state: State, i: int | Tensor, row: Tensor) -> State:
        sigma_t, keep, move, fresh, ahead = row
        x_t, last_prior, _, _, smallest, resamplings = state
        guide = twist(x_t, sigma_t)
        log_w = reweighted(state, guide.log_twist)
        w = normalised(log_w)
        effective = 1 / w.square().sum(-1)
        poor = effective < sampler.threshold * count
        ancestor = systematic(w, chances.uniform(index, (), step=i, draw=draws, dtype=dtype), count)
        ancestor = torch.where(poor.unsqueeze(1), ancestor, particle)
        rows = (first_row + ancestor).flatten()
        x_t, prior, guided, last_prior = (part[rows] for part in (x_t, guide.prior, guide.guided, last_prior))
        log_twist = guide.log_twist.to(dtype)[rows].reshape(n, count)
        log_w = torch.where(poor.unsqueeze(1), 0, log_w)

        target = guided + ahead * (prior - last_prior)
        z = normal(1 + i)
        # both kernels have the variance `fresh`²: log p − log q needs only how far apart their means are
        apart = move / fresh * (guided - prior)
        log_ratio = -(dot(z, apart) + 0.5 * dot(apart, apart)).reshape(n, count)
        x_s = keep * x_t + move * target + fresh * z
        smallest = torch.minimum(smallest, effective)
        return x_s, prior, log_w + log_ratio, log_twist, smallest, resamplings + poor

    table = sampler.table(sigmas.double()).to(mean)
    x = mean + sigmas[0].to(mean) * normal(0)
    nothing = torch.zeros(n, count, dtype=dtype, device=mean.device)
    smallest = torch.full((n,), float(count), dtype=dtype, device=mean.device)
    state: State = (x, torch.zeros_like(x), nothing, nothing, smallest, torch.zeros_like(index))
    state = walk(step, state, table, n * count, captured=captured, progress=progress, bookmark=bookmark)

    ended = finish(state[0], sigmas[-1].to(mean))
    w = normalised(reweighted(state, ended.log_likelihood))
    u = chances.uniform(index, (), step=len(table), draw=draws, dtype=dtype)
    x = ended.x[first_row + systematic(w, u, sampler.picks)]
    return Weighted(x, torch.minimum(state[4], 1 / w.square().sum(-1)), state[5])
