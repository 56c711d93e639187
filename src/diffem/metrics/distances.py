"""Distances between two sets of samples `(n, *event)`, `(m, *event)`: sliced Wasserstein and Fréchet."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.randomness import Stream


def flat(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Convert both sets to vectors of one dtype and device. Raises InputError if they cannot be compared."""
    if x.ndim < 2 or not x.is_floating_point() or not y.is_floating_point():
        raise InputError(
            f"a distance compares floating-point samples (n, *event), got {x.dtype} {tuple(x.shape)} and {y.dtype} "
            f"{tuple(y.shape)}"
        )
    if x.shape[1:] != y.shape[1:]:
        raise InputError(
            f"the two sets hold samples of different shapes: {tuple(x.shape[1:])} and {tuple(y.shape[1:])}"
        )
    if len(x) < 2 or len(y) < 2:
        raise InputError(f"a distance needs at least two samples on each side, got {len(x)} and {len(y)}")
    if not (torch.isfinite(x).all() and torch.isfinite(y).all()):
        raise InputError("a distance needs finite samples, and some are NaN or infinite")
    # in the wider of the two precisions
    dtype = torch.promote_types(x.dtype, y.dtype)
    return x.flatten(1).to(dtype), y.flatten(1).to(device=x.device, dtype=dtype)


@in_default_modes
def sliced_wasserstein(x: Tensor, y: Tensor, *, p: int = 1, slices: int = 1000, seed: int = 0) -> float:
    """Sliced Wasserstein distance: (mean over random directions of W_p^p of the projections)^(1/p)."""
    x, y = flat(x, y)
    (of_x, of_y, share), total, chunk = _pairs(len(x), len(y), x.device), 0.0, 64
    for start in range(0, slices, chunk):
        index = torch.arange(start, min(start + chunk, slices), device=x.device)
        directions = Stream(seed, "slices").normal(index, (x.shape[1],), dtype=x.dtype)
        directions = directions / directions.norm(dim=1, keepdim=True)
        a, b = ((s @ directions.T).sort(0).values for s in (x, y))
        if len(a) == len(b):
            total += float((a - b).abs().pow(p).mean(0).double().sum())
        else:
            total += float((share @ (a[of_x] - b[of_y]).abs().pow(p).double()).sum())
    return (total / slices) ** (1 / p)


def _pairs(n: int, m: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """The transport between n and m sorted numbers of equal weight: the pairs of indices, and the share of each."""
    # in units of 1/(n·m), number i of n holds the quantiles from i·m to (i + 1)·m
    ends = torch.cat([torch.arange(1, n + 1) * m, torch.arange(1, m + 1) * n]).unique().to(device)
    share = ends.diff(prepend=ends.new_zeros(1)).double() / (n * m)
    return (ends - 1) // m, (ends - 1) // n, share


@in_default_modes
def frechet(x: Tensor, y: Tensor) -> float:
    """‖μ_x − μ_y‖² + tr(Σ_x + Σ_y − 2(Σ_xΣ_y)^½): the squared distance between the Gaussians with the sets' moments."""
    x, y = (s.double() for s in flat(x, y))
    mean = (x.mean(0) - y.mean(0)).square().sum()
    x, y = (s - s.mean(0) for s in (x, y))
    if min(len(x), len(y)) < x.shape[1]:
        # with fewer samples than dimensions, tr(Σ_xΣ_y)^½ is the nuclear norm of the smaller matrix XYᵀ/√((n−1)(m−1))
        x, y = x / math.sqrt(len(x) - 1), y / math.sqrt(len(y) - 1)
        small, large = (x, y) if len(x) < len(y) else (y, x)
        cross = small @ large.T
        product = torch.linalg.eigvalsh(cross @ cross.T).clamp(min=0).sqrt().sum()
        return float(mean + x.square().sum() + y.square().sum() - 2 * product)
    return gaussian_distance(mean, *(s.T @ s / (len(s) - 1) for s in (x, y)))


def gaussian_distance(squared: Tensor, cov_x: Tensor, cov_y: Tensor) -> float:
    """The squared Fréchet distance of two Gaussians from ‖μ_x − μ_y‖² and their covariances.

    With S = Σ_x^½, the symmetric SΣ_yS has the eigenvalues of Σ_xΣ_y; GPUs solve symmetric eigenproblems only.
    """
    values, vectors = torch.linalg.eigh(cov_x)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    product = torch.linalg.eigvalsh(root @ cov_y @ root).clamp(min=0).sqrt().sum()
    return float(squared + cov_x.trace() + cov_y.trace() - 2 * product)
