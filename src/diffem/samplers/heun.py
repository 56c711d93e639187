r"""Heun's method on the probability-flow ODE dx/dσ = (x − D(x, σ))/σ, of second order.

Karras et al., Elucidating the Design Space of Diffusion-Based Generative Models, 2022, Algorithm 1.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from ..core.cuda_graphs import State
from .base import Denoise, Noise, Sampler


class Heun(Sampler):
    """Heun's method for the probability-flow ODE (Karras et al. 2022): deterministic, two evaluations per step."""

    name: ClassVar[str] = "heun"
    evaluations_per_step = 2
    noises_per_step = 0

    def table(self, sigmas: Tensor) -> Tensor:
        sigma_t, sigma_s = sigmas[:-1], sigmas[1:]
        return torch.stack([sigma_t, sigma_s, sigma_s - sigma_t], 1)

    def start(self, x: Tensor) -> State:
        return (x,)

    def step(self, denoise: Denoise, state: State, row: Tensor, noise: Noise) -> State:
        sigma_t, sigma_s, delta = row
        (x_t,) = state
        slope_t = (x_t - denoise(x_t, sigma_t)) / sigma_t
        x_s = x_t + delta * slope_t
        slope_s = (x_s - denoise(x_s, sigma_s)) / sigma_s
        return (x_t + delta * (slope_t + slope_s) / 2,)
