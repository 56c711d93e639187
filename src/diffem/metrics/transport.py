"""Entropic optimal transport between two sets of samples with squared distances, and the Sinkhorn divergence."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from ..core.compile import fused
from ..core.errors import InputError
from ..core.modes import in_default_modes
from .distances import flat

LEVEL_ITERATIONS, LAST_ITERATIONS = 20, 100
MEMORY = 12  # number of iterates that Anderson acceleration combines
SMALL = 1 << 20  # largest number of pairs of points for which double precision is used
FEW = 8  # largest number of coordinates for which a GPU computes distances on the fly; measured at three and five


@in_default_modes
def sinkhorn(x: Tensor, y: Tensor, *, reg: float = 1e-3, debias: bool = True) -> float:
    r"""Entropic optimal transport with squared distances; the Sinkhorn divergence when debiased,

        OT(x, y) − ½ OT(x, x) − ½ OT(y, y)

    (Feydy et al. 2019). Potentials are iterated in the log domain, the regularisation falling geometrically from the
    size of the data to `reg`. Plain iterations would need about (size of the data)²/reg steps, since mass moves by √reg
    per iteration. Anderson's acceleration needs about the square root of that.
    """
    if not reg > 0:
        raise InputError(f"the regularisation must be positive, got {reg}")
    x, y = flat(x, y)
    cross = entropic_cost(x, y, reg)
    return cross - 0.5 * (entropic_cost(x, None, reg) + entropic_cost(y, None, reg)) if debias else cross


@in_default_modes
def entropic_cost(x: Tensor, y: Tensor | None, reg: float) -> float:
    """The dual value ⟨f, 1/n⟩ + ⟨g, 1/m⟩ at convergence; y = None compares x with itself, where f = g."""
    if len(x) * len(x if y is None else y) <= SMALL:
        x, y = x.double(), None if y is None else y.double()
    return _self_cost(x, reg) if y is None else _cross_cost(x, y, reg)


def _cross_cost(x: Tensor, y: Tensor, reg: float) -> float:
    of_x, of_y = _soft_minima(x, y)
    both = torch.cat([x, y])
    epsilon = max(float((both.amax(0) - both.amin(0)).square().sum()) / 4, reg)
    g = y.new_zeros(len(y))

    def step(g: Tensor, epsilon: float) -> Tensor:
        g = of_y(of_x(g, epsilon), epsilon)
        # f and g are determined up to a constant: fix it, since rounding errors would accumulate there
        return g - g.mean()

    while epsilon > reg:
        g = _accelerated(partial(step, epsilon=epsilon), g, LEVEL_ITERATIONS, 1e-3 * epsilon)
        epsilon = max(epsilon / 2, reg)
    g = _accelerated(partial(step, epsilon=reg), g, LAST_ITERATIONS, 1e-4 * reg)
    f = of_x(g, reg)
    return float(f.double().mean() + of_y(f, reg).double().mean())


def _self_cost(x: Tensor, reg: float) -> float:
    """Iterate one potential by half steps to its soft minimum.

    No mass moves, so a few iterations at fixed regularisation suffice.
    """
    of_x, _ = _soft_minima(x, x, keep=False)

    def step(f: Tensor) -> Tensor:
        return (f + of_x(f, reg)) / 2

    f = step(_accelerated(step, x.new_zeros(len(x)), LAST_ITERATIONS, 1e-4 * reg))
    return 2 * float(f.double().mean())


SoftMinimum = Callable[[Tensor, float], Tensor]


def _soft_minima(x: Tensor, y: Tensor, keep: bool = True) -> tuple[SoftMinimum, SoftMinimum]:
    """Make the soft minimum −ε log mean_j exp((g_j − ‖x_i − y_j‖²)/ε) as a function of g and ε, and that over i.

    Args:
        keep: Whether the n·m distances may be stored.
    """
    if _cheap(x):
        from .soft_minimum import soft_minimum

        a, b = x.T.contiguous(), y.T.contiguous()
        return partial(soft_minimum, a, b), partial(soft_minimum, b, a)
    cost = _squared_distances(x, y) if keep else None
    return partial(_soft_minimum, x, y, cost), partial(_soft_minimum, y, x, None if cost is None else cost.T)


def _cheap(x: Tensor) -> bool:
    """Whether computing a squared distance is faster than reading it."""
    return x.is_cuda and x.dtype == torch.float32 and x.shape[1] <= FEW and find_spec("triton") is not None


def _soft_minimum(x: Tensor, y: Tensor, cost: Tensor | None, g: Tensor, epsilon: float) -> Tensor:
    """Soft minima from squared distances, by blocks of rows. Distances that are not stored in `cost` are recomputed."""
    rows = _rows(len(y))
    parts = (_squared_distances(some, y) for some in x.split(rows)) if cost is None else cost.split(rows)
    inverse = torch.full((), 1 / epsilon, dtype=g.dtype, device=g.device)
    return -epsilon * (torch.cat([_log_sums(g, part, inverse) for part in parts]) - math.log(len(y)))


@fused
def _log_sums(g: Tensor, cost: Tensor, inverse: Tensor) -> Tensor:
    return torch.logsumexp((g - cost) * inverse, 1)


def _squared_distances(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances `(n, m)`, computed in float64 to avoid cancellation, and stored in the dtype of the points."""
    cost = torch.empty(len(x), len(y), dtype=x.dtype, device=x.device)
    b = y.double()
    for some, a in zip(cost.split(_rows(len(y))), x.double().split(_rows(len(y))), strict=True):
        some.copy_((a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T).clamp_(min=0))
    return cost


def _rows(columns: int) -> int:
    """Number of rows of a matrix per block, so that temporary tensors stay small."""
    return max(1, (1 << 27) // columns)


def _accelerated(step: Callable[[Tensor], Tensor], g: Tensor, iterations: int, tolerance: float) -> Tensor:
    """Iterate g ← step(g) with Anderson's acceleration until the mean change is below `tolerance`.

    Returns the g that changed least.
    """
    images: list[Tensor] = []
    moves: list[Tensor] = []
    least, smallest = g, math.inf
    for _ in range(iterations):
        image = step(g)
        move = (image - g).double()
        images, moves = [*images, image.double()][-MEMORY:], [*moves, move][-MEMORY:]
        differences = torch.stack(moves).diff(dim=0)  # (k, n)
        products = differences @ torch.cat([differences, move[None]]).T
        # one synchronisation for all scalars; the small system is solved on the host, which is faster than on a GPU
        seen = torch.cat([products.flatten(), move.abs().mean()[None]]).cpu()
        size = float(seen[-1])
        failed = not size < 10 * smallest
        if size < smallest:
            least, smallest = image, size
        if size < tolerance:
            break
        if failed:  # continue from the plain iterate, without the combination
            images, moves = images[-1:], moves[-1:]
        g = image
        if len(moves) > 1:
            gram, along = seen[:-1].reshape(products.shape).split([len(differences), 1], dim=1)
            # if successive changes are equal, only the ridge remains, and the step is a plain one
            ridge = 1e-10 * gram.diagonal().mean() + torch.finfo(gram.dtype).tiny
            weights = torch.linalg.solve(gram + ridge * torch.eye(len(gram), dtype=gram.dtype), along)[:, 0]
            g = (images[-1] - weights.to(image.device) @ torch.stack(images).diff(dim=0)).to(image.dtype)
    return least
