r"""Distances between two sets of samples `(n, *event)`, `(m, *event)`: sliced Wasserstein, Sinkhorn, Fréchet."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import InputError
from ..randomness import Stream


def _flat(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    if x.shape[1:] != y.shape[1:]:
        raise InputError(
            f"the two sets hold samples of different shapes: {tuple(x.shape[1:])} and {tuple(y.shape[1:])}"
        )
    if len(x) < 2 or len(y) < 2:
        raise InputError(f"a distance needs at least two samples on each side, got {len(x)} and {len(y)}")
    return x.flatten(1), y.flatten(1).to(x)


def sliced_wasserstein(x: Tensor, y: Tensor, *, p: int = 1, slices: int = 1000, seed: int = 0) -> float:
    """(mean over random directions of W_p^p between the projections)^(1/p); sets of different sizes are compared by quantiles."""
    x, y = _flat(x, y)
    total, chunk = 0.0, 64
    for start in range(0, slices, chunk):
        index = torch.arange(start, min(start + chunk, slices), device=x.device)
        directions = Stream(seed, "slices").normal(index, (x.shape[1],), dtype=x.dtype)
        directions = directions / directions.norm(dim=1, keepdim=True)
        a, b = ((s @ directions.T).sort(0).values for s in (x, y))
        if len(a) != len(b):
            n = max(len(a), len(b))
            level = (torch.arange(n, device=x.device) + 0.5) / n
            a, b = (s[(level * len(s)).long().clamp(max=len(s) - 1)] for s in (a, b))
        total += float((a - b).abs().pow(p).mean(0).double().sum())
    return (total / slices) ** (1 / p)


def sinkhorn(
    x: Tensor, y: Tensor, *, reg: float = 1e-3, iterations: int = 500, debias: bool = True, tolerance: float = 1e-3
) -> float:
    r"""Entropic optimal transport with squared distances; the Sinkhorn divergence when debiased,

        OT(x, y) − ½ OT(x, x) − ½ OT(y, y)

    (Feydy et al. 2019). Potentials are iterated in the log domain, the regularisation falling geometrically from the size of
    the data to `reg`; at `reg`, until the potentials move by less than `tolerance`·reg on average or `iterations` are done.
    """
    x, y = _flat(x, y)
    cross = entropic_cost(x, y, reg, iterations, tolerance)
    if not debias:
        return cross
    return cross - 0.5 * (
        entropic_cost(x, None, reg, iterations, tolerance) + entropic_cost(y, None, reg, iterations, tolerance)
    )


def entropic_cost(x: Tensor, y: Tensor | None, reg: float, iterations: int, tolerance: float) -> float:
    """The dual value ⟨f, 1/n⟩ + ⟨g, 1/m⟩ at (near) convergence; y = None compares x with itself, where f = g."""
    # squared distances in float64, where the expansion loses nothing, kept in the precision of the points
    a, b = x.double(), (x if y is None else y).double()
    cost = (a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_(min=0).to(x.dtype)
    f, g = cost.new_zeros(cost.shape[0]), cost.new_zeros(cost.shape[1])
    epsilon = max(float(cost.max()), reg)
    while True:
        final = epsilon <= reg
        for k in range(iterations if final else 4):
            before = f
            if y is None:  # one potential, moving halfway to its soft minimum: converges in a few dozen iterations
                f = g = (f + _soft_minimum(cost, f, epsilon)) / 2
            else:
                f = _soft_minimum(cost, g, epsilon)
                g = _soft_minimum(cost.T, f, epsilon)
            if final and k % 8 == 7 and float((f - before).abs().mean()) < tolerance * reg:
                break
        if final:
            return float(f.double().mean() + g.double().mean())
        epsilon = max(epsilon / 2, reg)


def _soft_minimum(cost: Tensor, g: Tensor, epsilon: float) -> Tensor:
    """−ε log mean_j exp((g_j − cost_ij)/ε) for every i; rows in chunks, so that intermediates stay small."""
    rows = max(1, (1 << 27) // cost.shape[1])
    parts = [torch.logsumexp((g - part).div_(epsilon), 1) for part in cost.split(rows)]
    return -epsilon * (torch.cat(parts) - math.log(cost.shape[1]))


def frechet(x: Tensor, y: Tensor) -> float:
    """‖μ_x − μ_y‖² + tr(Σ_x + Σ_y − 2(Σ_xΣ_y)^½): the squared distance between the Gaussians with the sets' moments."""
    x, y = (s.double() for s in _flat(x, y))
    cov_x, cov_y = (torch.atleast_2d(torch.cov(s.T)) for s in (x, y))
    values, vectors = torch.linalg.eigh(cov_x)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    product = torch.linalg.eigvalsh(root @ cov_y @ root).clamp(min=0).sqrt().sum()
    mean = (x.mean(0) - y.mean(0)).square().sum()
    return float(mean + cov_x.trace() + cov_y.trace() - 2 * product)
