r"""DDIM with stochasticity η, of first order, or of second order with the memory of one evaluation.

The reverse SDE (the paper's Eq. 3) with stochasticity η, from σ_t to σ_s with x̂ = D(x_t, σ_t):

    x_s = x̂ + σ_s √(1 − η²τ) (x_t − x̂)/σ_t + σ_s √(η²τ) z,      τ = 1 − σ_s²/σ_t².

η = 0 is the deterministic DDIM, η = 1 is DDPM. η enters squared, as in Eq. 3 (Algorithm 2 of the paper writes it
without the square; at 0 and 1 there is no difference).

Holding x̂ fixed through a step loses variance: at 64 steps DDPM returns a Gaussian 8 % too narrow, and
expectation–maximisation compounds that lap after lap. The second-order step extrapolates x̂ to the middle of the step
in log σ from the previous evaluation,

    x̂ ← x̂_t + c(h) h/(2h') (x̂_t − x̂_{t'}),      h = log σ_t/σ_s,  h' = log σ_{t'}/σ_t,

without a further evaluation. With c = 1 this is DPM-Solver++ 2M (Lu et al. 2022) in variance-exploding form, which
returns a Gaussian 0.5 % too wide at 64 steps and 4.5 % at 18. Since levels are log-linear, that excess depends on h and
hardly on the variance. `CALIBRATION` is the c(h), found on a Gaussian by bisection, that removes it (below 0.2 % from
18 steps on). c tends to 1 as h → 0, so the order is unchanged.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..core.cuda_graphs import State
from ..core.errors import InputError
from .base import Denoise, Noise, Sampler

CALIBRATION = (1.0, -0.32, 0.24)  # coefficients of 1, h, h²: within 0.004 of the bisection for 0 < h < 1 and any η


class DDIM(Sampler):
    """DDIM and DDPM: the samplers `ddim`, `ddpm`, `ddim2` and `ddpm2`.

    Args:
        eta: Stochasticity, from 0 (deterministic, DDIM) to 1 (DDPM).
        order: 1, or 2 for the calibrated second-order step (from DPM-Solver++ 2M, Lu et al. 2022), which takes no
            further evaluations.
    """

    name: ClassVar[str] = "ddim"
    evaluations_per_step = 1

    def __init__(self, eta: float = 0.0, order: int = 1) -> None:
        if not 0 <= eta <= 1:
            raise InputError(f"eta must lie in [0, 1], got {eta}")
        if order not in (1, 2):
            raise InputError(f"order must be 1 or 2, got {order}")
        self.eta, self.order = float(eta), order
        self.noises_per_step = 1 if eta > 0 else 0

    def response(self, h: float) -> float:
        # 1 − keep, written as (1 − keep²)/(1 + keep) with 1 − keep² = τ (1 + η² σ_s²/σ_t²), so that no digits cancel
        left, again = math.exp(-2 * h), self.eta**2
        keep = math.exp(-h) * math.sqrt(1 - again + again * left)
        return -math.expm1(-2 * h) * (1 + again * left) / (1 + keep)

    def table(self, sigmas: Tensor) -> Tensor:
        sigma_t, sigma_s = sigmas[:-1], sigmas[1:]
        fresh = self.eta**2 * (1 - (sigma_s / sigma_t) ** 2)
        keep = sigma_s * (1 - fresh).sqrt() / sigma_t
        h = (sigma_t / sigma_s).log()
        ahead = torch.zeros_like(h)
        if self.order == 2:
            constant, linear, quadratic = CALIBRATION
            calibration = constant + linear * h.clamp(max=1) + quadratic * h.clamp(max=1) ** 2
            ahead[1:] = calibration[1:] * h[1:] / (2 * h[:-1])
        return torch.stack([sigma_t, keep, 1 - keep, sigma_s * fresh.sqrt(), ahead], 1)

    def start(self, x: Tensor) -> State:
        return (x,) if self.order == 1 else (x, torch.zeros_like(x))

    def step(self, denoise: Denoise, state: State, row: Tensor, noise: Noise) -> State:
        sigma_t, keep, move, fresh, ahead = row
        x_t = state[0]
        x_hat = denoise(x_t, sigma_t)
        target = x_hat if self.order == 1 else x_hat + ahead * (x_hat - state[1])
        x_s = keep * x_t + move * target
        if self.noises_per_step:
            x_s = x_s + fresh * noise(0)
        return (x_s,) if self.order == 1 else (x_s, x_hat)
