r"""Distances between two sets of samples `(n, *event)`, `(m, *event)`: sliced Wasserstein, Sinkhorn, Fréchet."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import InputError
from ..fusion import fused
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


def sinkhorn(x: Tensor, y: Tensor, *, reg: float = 1e-3, debias: bool = True) -> float:
    r"""Entropic optimal transport with squared distances; the Sinkhorn divergence when debiased,

        OT(x, y) − ½ OT(x, x) − ½ OT(y, y)

    (Feydy et al. 2019). Potentials are iterated in the log domain, the regularisation falling geometrically from the size of the
    data to `reg`. Plain iterations would take about (size of the data)²/reg of them, and stop far below the value long before: mass
    that has to travel along a curve moves by √reg at a time. Anderson's acceleration takes the square root of that.
    """
    x, y = _flat(x, y)
    cross = entropic_cost(x, y, reg)
    return cross - 0.5 * (entropic_cost(x, None, reg) + entropic_cost(y, None, reg)) if debias else cross


LEVEL_ITERATIONS, LAST_ITERATIONS = 20, 100
MEMORY = 12  # iterates that an accelerated one combines
SMALL = 1 << 20  # pairs of points, up to which double precision costs nothing that matters


def entropic_cost(x: Tensor, y: Tensor | None, reg: float) -> float:
    """The dual value ⟨f, 1/n⟩ + ⟨g, 1/m⟩ at convergence; y = None compares x with itself, where f = g."""
    if len(x) * len(x if y is None else y) <= SMALL:
        x, y = x.double(), None if y is None else y.double()
    return _self_cost(x, reg) if y is None else _cross_cost(x, y, reg)


def _cross_cost(x: Tensor, y: Tensor, reg: float) -> float:
    cost = _squared_distances(x, y)
    g = cost.new_zeros(cost.shape[1])
    epsilon = max(float(cost.max()) / 4, reg)

    def step(g: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
        """f of g, and the next g."""
        f = _soft_minimum(cost, g, epsilon)
        return f, _soft_minimum(cost.T, f, epsilon)

    while epsilon > reg:
        g = _accelerated(lambda g, e=epsilon: step(g, e)[1], g, LEVEL_ITERATIONS, 1e-3 * epsilon)  # type: ignore[misc]
        epsilon = max(epsilon / 2, reg)
    g = _accelerated(lambda g: step(g, reg)[1], g, LAST_ITERATIONS, 1e-4 * reg)
    f, g = step(g, reg)
    return float(f.double().mean() + g.double().mean())


def _self_cost(x: Tensor, reg: float) -> float:
    """One potential, moving halfway to its soft minimum. No mass travels, so a few iterations do and the regularisation need not fall."""

    def step(f: Tensor) -> Tensor:
        # distances are made again each time: all of them at once would take the memory of n² numbers
        parts = [_soft_minimum(_squared_distances(some, x), f, reg) for some in x.split(_rows(len(x)))]
        return (f + torch.cat(parts)) / 2

    f = step(_accelerated(step, x.new_zeros(len(x)), LAST_ITERATIONS, 1e-4 * reg))
    return 2 * float(f.double().mean())


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """`(n, m)`, computed in float64, where the expansion loses nothing, and kept in the precision of the points."""
    cost = torch.empty(len(x), len(y), dtype=x.dtype, device=x.device)
    b = y.double()
    for some, a in zip(cost.split(_rows(len(y))), x.double().split(_rows(len(y))), strict=True):
        some.copy_((a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_(min=0))
    return cost


def _rows(columns: int) -> int:
    """How many rows of a matrix are worked on at a time, so that intermediates stay small."""
    return max(1, (1 << 27) // columns)


def _accelerated(step: Callable[[Tensor], Tensor], g: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Iterate g ← step(g) with Anderson's acceleration, until g moves by less than `tolerance` on average; the one that moved least."""
    images: list[Tensor] = []
    moves: list[Tensor] = []
    least, smallest = g, math.inf
    for _ in range(iterations):
        image = step(g)
        move = (image - g).double()
        size = float(move.abs().mean())
        if not size < 10 * smallest:  # the combination went astray: on from the plain iterate
            images, moves = [], []
        if size < smallest:
            least, smallest = image, size
        if size < tolerance:
            break
        images, moves = [*images, image.double()][-MEMORY:], [*moves, move][-MEMORY:]
        g = image
        if len(moves) > 1:
            differences = torch.stack(moves).diff(dim=0)  # (k, n)
            gram = differences @ differences.T
            # moves that repeat to the last digit differ by nothing: then the ridge alone is left, and the step is a plain one
            ridge = 1e-10 * gram.diagonal().mean() + torch.finfo(gram.dtype).tiny
            gram += ridge * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
            weights = torch.linalg.solve(gram, differences @ move)
            g = (images[-1] - weights @ torch.stack(images).diff(dim=0)).to(image.dtype)
    return least


def _soft_minimum(cost: Tensor, g: Tensor, epsilon: float) -> Tensor:
    """−ε log mean_j exp((g_j − cost_ij)/ε) for every i."""
    inverse = torch.full((), 1 / epsilon, dtype=cost.dtype, device=cost.device)
    parts = [_log_sum_exp(g, part, inverse) for part in cost.split(_rows(cost.shape[1]))]
    return -epsilon * (torch.cat(parts) - math.log(cost.shape[1]))


@fused
def _log_sum_exp(g: Tensor, cost: Tensor, inverse: Tensor) -> Tensor:
    return torch.logsumexp((g - cost) * inverse, 1)


def frechet(x: Tensor, y: Tensor) -> float:
    """‖μ_x − μ_y‖² + tr(Σ_x + Σ_y − 2(Σ_xΣ_y)^½): the squared distance between the Gaussians with the sets' moments."""
    x, y = (s.double() for s in _flat(x, y))
    mean = (x.mean(0) - y.mean(0)).square().sum()
    x, y = (s - s.mean(0) for s in (x, y))
    if min(len(x), len(y)) < x.shape[1]:
        # fewer samples than dimensions: tr(Σ_xΣ_y)^½ is the nuclear norm of XYᵀ/√((n−1)(m−1)), a smaller matrix
        x, y = x / math.sqrt(len(x) - 1), y / math.sqrt(len(y) - 1)
        small, large = (x, y) if len(x) < len(y) else (y, x)
        cross = small @ large.T
        product = torch.linalg.eigvalsh(cross @ cross.T).clamp(min=0).sqrt().sum()
        return float(mean + x.square().sum() + y.square().sum() - 2 * product)
    cov_x, cov_y = (s.T @ s / (len(s) - 1) for s in (x, y))
    values, vectors = torch.linalg.eigh(cov_x)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T
    product = torch.linalg.eigvalsh(root @ cov_y @ root).clamp(min=0).sqrt().sum()
    return float(mean + cov_x.trace() + cov_y.trace() - 2 * product)
