"""Compare points with the manifold's curve: distance from it, position along it, and exact posterior draws."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diffem.core.randomness import Stream
from diffem.datasets.manifold import curve
from diffem.metrics.distances import sliced_wasserstein
from diffem.metrics.transport import entropic_cost

REG = 1e-3  # regularisation of Sinkhorn divergences, as in the paper
LINE = 1 << 13  # number of even points that represent the curve
STRAY = 0.5  # a draw at a larger distance from the curve, whose coordinates span [-2, 2], lies between its branches
ELSEWHERE = 0.5  # a draw at a larger distance from its true point, along the curve, lies on another branch


class DivergenceFrom:
    """The Sinkhorn divergence from a fixed set of points, whose own term is computed once."""

    def __init__(self, target: Tensor) -> None:
        self.target = target
        self.own = entropic_cost(target, None, REG)

    def __call__(self, x: Tensor, own: float | None = None) -> float:
        """Divergence of x from the set; own: the term of x itself, if it has been computed already."""
        x = x.to(self.target)
        own = entropic_cost(x, None, REG) if own is None else own
        return entropic_cost(x, self.target, REG) - 0.5 * (own + self.own)


def even_truth(n: int, seed: int, dimension: int = 5) -> Tensor:
    """The curve without sampling error: n points at even positions, `(n, dimension)`."""
    return curve((torch.arange(n, dtype=torch.float64) + 0.5) / n, seed, dimension).float()


def lengths_of(line: Tensor) -> Tensor:
    """Arc lengths `(n,)` of points `(n, d)` in order along a curve, from its beginning."""
    return torch.cat([line.new_zeros(1), line.diff(dim=0).norm(dim=1)]).double().cumsum(0)


def on_curve(x: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Distances `(n,)` of points `(n, d)` from the curve, and the arc lengths `(n,)` of the nearest positions on it."""
    line = even_truth(LINE, seed, x.shape[1]).to(x)
    parts = [torch.cdist(some, line).min(1) for some in x.split(4096)]
    nearest = torch.cat([p.indices for p in parts])
    return torch.cat([p.values for p in parts]).double(), lengths_of(line)[nearest]


def moved(a: Tensor, b: Tensor) -> float:
    """W₂² between positions `(n,)` and `(m,)` on a line, where sliced W₂ is exact."""
    return sliced_wasserstein(a[:, None], b[:, None], p=2, slices=1) ** 2


def along_truth(x: Tensor, seed: int) -> float:
    """W₂ between the positions of points `(n, d)` along the curve and the whole curve."""
    return math.sqrt(moved(on_curve(x, seed)[1].cpu(), lengths_of(even_truth(LINE, seed, x.shape[1]))))


def distance_from_curve(x: Tensor, seed: int) -> Tensor:
    return on_curve(x, seed)[0]


def exact_places(y: Tensor, A: Tensor, sigma: float, seed: int, draws: int = 1) -> Tensor:
    """Draw from the exact posterior of each observation, with the true curve as the prior.

    Args:
        y: (n, m). Measured values.
        A: (n, m, d). Operators.

    Returns:
        Indices `(n, draws)` among LINE even points of the curve.
    """
    line = even_truth(LINE, seed, A.shape[2]).to(A)
    index = torch.arange(len(y), device=y.device)
    u = Stream(seed, "manifold exact draws").uniform(index, (draws,), dtype=torch.float64)
    chosen = []
    for y_i, A_i, u_i in zip(y.split(1024), A.split(1024), u.split(1024), strict=True):
        residual = y_i.unsqueeze(2) - A_i @ line.T  # (n, m, LINE)
        ladder = torch.softmax(-0.5 * residual.square().sum(1).double() / sigma**2, 1).cumsum(1)
        chosen.append(torch.searchsorted(ladder, u_i * ladder[:, -1:]))
    return torch.cat(chosen)


def exact_draws(y: Tensor, A: Tensor, sigma: float, seed: int) -> Tensor:
    """One exact posterior draw for each observation, `(n, d)`."""
    return even_truth(LINE, seed, A.shape[2]).to(A)[exact_places(y, A, sigma, seed)[:, 0]]


def without_floor(draws: Tensor, truths: Tensor, seed: int) -> dict[str, float]:
    """Measures of draws `(n, d)` that are zero for perfect draws of the true points `(n, d)`.

    They are the mean squared distance from the curve, the fraction of outliers, the fraction on another branch than the
    true points, and W₂ to the true points, along the curve and sliced.
    """
    distance, along = on_curve(draws, seed)
    true = on_curve(truths.to(draws), seed)[1]
    return {
        "off_curve": float(distance.square().mean()),
        "strays": float((distance > STRAY).double().mean()),
        "elsewhere": float(((along - true).abs() > ELSEWHERE).double().mean()),
        "along": math.sqrt(moved(along, true)),
        "sliced": sliced_wasserstein(draws, truths.to(draws), p=2),
    }


def worst_rise(values: list[float]) -> float:
    """The largest rise of a value above the lowest value before it, as a fraction of the latter."""
    return max((value / min(values[:i]) - 1 for i, value in enumerate(values) if i), default=0.0)
