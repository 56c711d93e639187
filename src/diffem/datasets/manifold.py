r"""The paper's first experiment: points on a smooth random curve in R⁵, of which two random projections are observed.

A coordinate of the curve is Σ_k a_k k^-α sin(2π(k b_k z + c_k)), k = 1 … 10, with a, b, c and the position z uniform on
[0, 1) (Zenke & Vogels 2021). Each coordinate is rescaled to [-2, 2].
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from ..core.randomness import Stream
from ..files import memory
from ..observations import Observations, Problem
from ..operators import Dense


def curve(z: Tensor, seed: int, dimension: int = 5, alpha: float = 3.0, terms: int = 10) -> Tensor:
    """Points of the curve, `(n, dimension)` in float64, at positions z `(n,)`."""
    parts = torch.arange(3)
    a, b, c = Stream(seed, "manifold curve").uniform(parts, (dimension, terms), dtype=torch.float64)
    k = torch.arange(1, terms + 1, dtype=torch.float64)

    def raw(z: Tensor) -> Tensor:
        phase = k * b * z.double().reshape(-1, 1, 1) + c
        return (a * k**-alpha * torch.sin(2 * math.pi * phase)).sum(-1)

    fine = raw(torch.linspace(0, 1, 1 << 14, dtype=torch.float64))
    low, high = fine.amin(0), fine.amax(0)
    return (raw(z) - low) / (high - low) * 4 - 2


def truth(n: int, seed: int, dimension: int = 5, purpose: str = "manifold test points") -> Tensor:
    """n random points of the curve, `(n, dimension)`."""
    z = Stream(seed, purpose).uniform(torch.arange(n), (), dtype=torch.float64)
    return curve(z, seed, dimension).float()


def manifold(seed: int, n: int = 1 << 16, dimension: int = 5, measured: int = 2, sigma: float = 1e-2) -> Problem:
    """Observe points of the curve through random projections.

    Args:
        seed: Seed of the curve, the points, the projections and the noise.
        n: Number of observations.
        dimension: Dimension of x.
        measured: Number of rows of each A; they are uniform on the sphere.
        sigma: Noise level.
    """
    for name, size in (("n", n), ("dimension", dimension), ("measured", measured)):
        if not isinstance(size, int) or size < 1:
            raise InputError(f"data.{name} must be a positive integer, got {size!r}")
    # the terms of the curve in float64 are the largest temporary tensor
    memory.require(
        8 * n * dimension * (10 + measured), f"data.n = {count_of(n, 'point')} in {count_of(dimension, 'dimension')}"
    )
    index = torch.arange(n)
    x = truth(n, seed, dimension, "manifold points")
    rows = Stream(seed, "manifold operators").normal(index, (measured, dimension))
    A = Dense(rows / rows.norm(dim=-1, keepdim=True))
    noise = Stream(seed, "manifold noise").normal(index, (measured,))
    return Problem(Observations(A(x) + sigma * noise, A, sigma=sigma), x)


def expected_size_of_manifold(options: dict[str, Any]) -> tuple[tuple[int, ...], int]:
    """Shape of a sample and number of observations, for estimates of memory and time."""
    return (int(options.get("dimension", 5)),), int(options.get("n", 1 << 16))
