r"""An unbiased estimate of the log density of a value under a Gaussian of which only k draws are given.

A value y = a + e has a ~ N(m, v), of which k draws are given, and e ~ N(0, s²) with s known. Its log density is

    ℓ = −½ [(y − m)²/(v + s²) + log 2π(v + s²)].

Replacing m and v by the mean ā and variance S² of the draws is biased: log is concave, 1/(v + s²) is convex, and ā
errs by v/k. Let α = (k − 1)/2. Then T = αS² has the gamma law of shape α and scale v and is independent of ā, and for
a gamma law the functions whose means are 1/(v + s²) and log(v + s²) are inverse Laplace transforms. With z = T/s²,

    E[M(z)] / s² = 1/(v + s²),             M(z) = ₁F₁(1; α; −z) = 1 − z F'(z),
    E[F(z)] + log s² = log(v + s²),        F(z) = ∫₀¹ (1 − c)^(α−1) (1 − e^(−zc)) dc/c.

Since E[(y − ā)²] = (y − m)² + v/k and v/(v + s²) = 1 − s²/(v + s²),

    −½ [(y − ā)² M/s² − (1 − M)/k + F + log 2πs²]

has the mean ℓ, for every k ≥ 2 and every ratio of v to s². (The Student law of a new value given k draws answers
another question: its mean log density is that of the k draws' prediction, and lies below ℓ.)
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import InputError

STEP, TAIL = 0.4, 24.0  # quadrature with errors of about exp(−π²/STEP) and exp(−TAIL)
CHUNK = 1 << 22  # numbers of a quadrature held at a time


def unbiased_log_density(y: Tensor, draws: Tensor, noise: Tensor) -> Tensor:
    """log N(y; m, v + s²) without bias, from draws of N(m, v).

    Args:
        y: Values, shape `(n,)`.
        draws: Independent draws of each value without its noise, shape `(k, n)`, k ≥ 2.
        noise: The noise variance s² of each value, shape `(n,)`.

    Returns:
        Float64, shape `(n,)`. With few draws single values may have large errors; their mean is unbiased. With two or
        three draws rare values are so low that the mean of a typical set of values is far too high.
    """
    k = len(draws)
    if k < 2:
        raise InputError(f"a predictive density needs at least 2 draws, got {k}")
    y, draws, noise = y.double(), draws.double(), noise.double()
    alpha = (k - 1) / 2
    M, F = _gamma_functions(alpha * draws.var(0) / noise, alpha)
    return -0.5 * ((y - draws.mean(0)).square() * M / noise - (1 - M) / k + F + (2 * math.pi * noise).log())


def _gamma_functions(z: Tensor, alpha: float) -> tuple[Tensor, Tensor]:
    """M and F at z `(n,)`, by the trapezoidal rule in log(c/(1 − c)), where the integrand is analytic and decays."""
    if not len(z):
        return z, z
    low = -math.log(max(float(z.max()), 1.0)) - TAIL
    high = (TAIL + math.log1p(1 / alpha)) / alpha + 2
    place = torch.arange(low, high, STEP, dtype=torch.float64, device=z.device)
    c, weight = torch.sigmoid(place), STEP * torch.sigmoid(-place) ** alpha
    M, F = torch.empty_like(z), torch.empty_like(z)
    for rows in torch.arange(len(z), device=z.device).split(max(1, CHUNK // len(place))):
        zc = z[rows, None] * c
        decay = torch.exp(-zc)
        M[rows], F[rows] = 1 - (zc * decay) @ weight, -torch.expm1(-zc) @ weight
    return M, F
