"""Direct solve: form the matrix with one product per measured value and factor it. For few measured values."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.cuda_graphs import capturing
from ...core.errors import InputError
from ..tiny import solve
from .form import Directions, Form, times
from .system import Solution, Status, System, relative, rounding

MAX_SIZE = 1024


def direct(
    system: System, b: Tensor, *, iterations: int = 0, tolerance: float | None = None, guard: bool = True
) -> Solution:
    """Solve M u = b exactly. b: `(n, *m)`; `iterations` and `tolerance` have no meaning here.

    The analogue of the curvature guard: A V Aᵀ is symmetrised, and u is restricted to the eigenvectors with
    non-negative eigenvalues. Eigenvalues that are negative beyond rounding are counted per sample. (Clamping them to 0
    instead would treat x̂ as certain along these directions and move the sample by e/Σ_y along a pullback that is not
    small.) In `energy` and `logdet`, which define the likelihood, negative eigenvalues enter with their absolute
    values, so that they do not raise the likelihood.
    """
    size = b[0].numel()
    if size > MAX_SIZE:
        raise InputError(
            f"solver 'direct' forms the {size}×{size} matrix with {size} products; it is meant for at most {MAX_SIZE} "
            "measured values per observation: use 'cg' or 'gmres'"
        )
    form, outside, largest, finite = Form.of(system, b)
    products, gram = size, form.gram
    directions: Directions | None = None
    if guard and system.noise is not None:
        directions = form.directions()
        if not capturing(gram) and bool(directions.hidden.any()):
            form, products = form.along(system, b, directions), 2 * size
            directions = form.directions()
        gram = directions.weighted(directions.magnitudes)

    M, rhs = gram + form.noise, b.flatten(1).to(gram)
    finite = finite & torch.isfinite(rhs).all(1)
    rhs = form.coordinates(torch.where(finite.unsqueeze(1), rhs, 0))
    c, logdet, regular = solve(M, rhs)
    logdet = logdet - (outside * largest.log()).sum(-1)
    solved = finite & regular
    energy = torch.where(solved, (rhs * c).sum(-1), torch.nan)
    guards = torch.zeros(len(b), dtype=torch.int64, device=b.device)
    moving = c
    if directions is not None:
        guards = directions.refused.sum(-1)
        kept = directions.weighted(~directions.refused)
        # as large as M: otherwise rounding errors of the projection could exceed M
        rest = largest.unsqueeze(-1) * (torch.eye(size, dtype=M.dtype, device=b.device) - kept)
        projected = solve(kept @ M @ kept + rest, times(kept, rhs))[0]
        c = torch.where(guards.unsqueeze(1) > 0, projected, c)
        # directions without signal, as of redundant rows of A, have large c whose pullbacks would cancel up to rounding
        moving = times(directions.weighted(directions.resolved), c)
    c, moving = (torch.where(solved.unsqueeze(1), v, 0) for v in (c, moving))

    pullback = torch.zeros_like(form.pulls[0], dtype=M.dtype)
    for weight, pull in zip(moving.unbind(-1), form.pulls, strict=True):
        weight = weight.reshape(-1, *(1,) * (pull.ndim - 1))
        pullback = torch.where(weight == 0, pullback, pullback + weight * pull)
    u = torch.where(outside, 0, form.restored(c))
    norm = rhs.norm(dim=-1)
    residual = relative((rhs - times(M, c)).norm(dim=-1), norm)
    # M is factored in float64, but its columns have the precision of b
    error = rounding(M.norm(dim=-1).amax(-1), u.square().sum(-1), norm, b.dtype)
    status = torch.where(solved, torch.where(guards > 0, Status.GUARDED, Status.CONVERGED), Status.BREAKDOWN)
    return Solution(
        u.to(b.dtype).reshape(b.shape),
        pullback.to(b.dtype),
        torch.ones_like(guards),
        torch.maximum(residual, error),
        status,
        guards,
        products,
        logdet,
        energy,
    )
