r"""Predictor–corrector: a deterministic DDIM step, then Langevin corrections at the level reached (Song et al. 2021).

A correction is x ← x + δ ∇log p(x_s) + √(2δ) z with δ = τσ_s², that is x − τ(x − x̂) + σ_s√(2τ) z. It is not
Metropolis-adjusted: if the noise dominates, its stationary variance is too large by τ/2 (5 % at τ = 0.1).

At noise levels about as large as the data, corrections let a draw move between modes. Below the size of the data's
details they no longer help, and thousands of them amplify the errors of a learned Jacobian. Corrections therefore end
at the noise level `down_to`.
"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from ..core.cuda_graphs import State
from ..core.errors import InputError
from .base import Denoise, Noise, Sampler
from .ddim import DDIM


class PredictorCorrector(Sampler):
    """Predictor–corrector (Song et al. 2021): a DDIM step, then Langevin corrections.

    Args:
        corrections: Corrections per step; each is one evaluation.
        tau: Size of a correction in units of the variance σ², in (0, 1).
        down_to: Noise level below which no corrections are made.
    """

    name: ClassVar[str] = "pc"

    def __init__(self, corrections: int = 1, tau: float = 0.1, down_to: float = 0.0) -> None:
        if not isinstance(corrections, int) or corrections < 0:
            raise InputError(f"corrections must be a non-negative integer, got {corrections!r}")
        if not 0 < tau < 1:
            raise InputError(f"tau must lie in (0, 1), got {tau}")
        if not 0 <= down_to < math.inf:
            raise InputError(f"down_to must be finite and at least 0, got {down_to}")
        self.corrections, self.tau, self.down_to = corrections, float(tau), float(down_to)
        self.evaluations_per_step = 1 + corrections
        self.noises_per_step = corrections
        self._predictor = DDIM()

    def phases(self, sigmas: Tensor) -> list[tuple[Sampler, Tensor]]:
        corrected = int((sigmas[1:] >= self.down_to).sum())
        parts: list[tuple[Sampler, Tensor]] = [(self, sigmas[: corrected + 1]), (self._predictor, sigmas[corrected:])]
        return [(sampler, levels) for sampler, levels in parts if len(levels) > 1]

    def table(self, sigmas: Tensor) -> Tensor:
        reached = sigmas[1:, None]
        return torch.cat([self._predictor.table(sigmas), math.sqrt(2 * self.tau) * reached, reached], 1)

    def start(self, x: Tensor) -> State:
        return self._predictor.start(x)

    def step(self, denoise: Denoise, state: State, row: Tensor, noise: Noise) -> State:
        (x,) = self._predictor.step(denoise, state, row[:-2], noise)
        spread, sigma_s = row[-2:]
        for slot in range(self.corrections):
            x_hat = denoise(x, sigma_s)
            x = x - self.tau * (x - x_hat) + spread * noise(slot)
        return (x,)
