"""Direct solve: form the matrix with one product per measured value and factor it. For few measured values."""

import torch
from torch import Tensor

from ...core.errors import InputError
from ..inner import accumulate_dtype
from ..tiny import eigh, solve
from .system import GUARD_SLACK, Solution, Status, System, relative, rounding

MAX_SIZE = 1024


def direct(
    system: System, b: Tensor, *, iterations: int = 0, tolerance: float | None = None, guard: bool = True
) -> Solution:
    """Solve M u = b exactly. b: `(n, *m)`; `iterations` and `tolerance` have no meaning here.

    The analogue of the curvature guard: A V Aᵀ is symmetrised, and u is restricted to the eigenvectors with
    non-negative eigenvalues. Negative eigenvalues are counted per sample. (Clamping them to 0 instead would treat x̂ as
    certain along these directions and move the sample by e/Σ_y along a pullback that is not small.) In `energy` and
    `logdet`, which define the likelihood, negative eigenvalues enter with their absolute values, so that they do not
    raise the likelihood.
    """
    size = b[0].numel()
    if size > MAX_SIZE:
        raise InputError(
            f"solver 'direct' forms the {size}×{size} matrix with {size} products; it is meant for at most {MAX_SIZE} "
            "measured values per observation: use 'cg' or 'gmres'"
        )
    guard = guard and system.noise is not None
    dtype = accumulate_dtype(b.device)
    signal_columns, noise_columns, pulls = [], [], []
    for j in range(size):
        e = torch.zeros_like(b[:1]).flatten(1)
        e[:, j] = 1
        e = e.reshape(1, *b.shape[1:]).expand_as(b)
        signal, noise_column, pull = system.product(e)
        signal_columns.append(signal.flatten(1))
        noise_columns.append(noise_column.flatten(1))
        pulls.append(pull)
    gram = torch.stack(signal_columns, -1).to(dtype)  # (n, m, m)
    noise = torch.stack(noise_columns, -1).to(dtype)
    # unmeasured entries have zero rows: they become unit rows with a zero right-hand side; a system without noise has
    # no such entries
    outside = ((gram == 0) & (noise == 0)).all(-1)  # (n, m)
    smallest_noise = noise.diagonal(dim1=-2, dim2=-1).where(~outside, torch.inf).amin(-1, keepdim=True)
    noise = noise + torch.diag_embed(outside.to(dtype))

    rhs = b.flatten(1).to(dtype)
    finite = torch.isfinite(gram).flatten(1).all(1) & torch.isfinite(rhs).all(1)
    gram = torch.where(finite.reshape(-1, 1, 1), gram, 0)
    clean = torch.where(finite.unsqueeze(1), rhs, 0)
    guards = torch.zeros(len(b), dtype=torch.int64, device=b.device)
    kept: Tensor | None = None  # (n, m, m) projection onto the directions that are kept
    if guard:
        values, vectors = eigh((gram + gram.mT) / 2)
        refused = values < -GUARD_SLACK * smallest_noise
        guards = refused.sum(-1)
        gram = (vectors * values.abs().unsqueeze(-2)) @ vectors.mT
        kept = (vectors * (~refused).to(dtype).unsqueeze(-2)) @ vectors.mT
    M = gram + noise
    u, logdet, regular = solve(M, clean)
    solved = finite & regular
    energy = torch.where(solved, (clean * u).sum(-1), torch.nan)
    if kept is not None:
        # in units of M: the rounding error of a projection of size 1 would exceed M in small units of y
        unit = M.diagonal(dim1=-2, dim2=-1).abs().where(~outside, 0).amax(-1).reshape(-1, 1, 1)
        one = torch.eye(size, dtype=dtype, device=b.device)
        rest = torch.where(unit > 0, unit, 1) * (one - kept)
        u = solve(kept @ M @ kept + rest, (kept @ clean.unsqueeze(-1)).squeeze(-1))[0]
    u = torch.where(solved.unsqueeze(1) & ~outside, u, 0)

    pullback = torch.zeros_like(pulls[0])
    for j, pull in enumerate(pulls):
        weight = u[:, j].to(pull.dtype).reshape(-1, *(1,) * (pull.ndim - 1))
        pullback = torch.where(weight == 0, pullback, pullback + weight * pull)
    residual = (clean - (M @ u.unsqueeze(-1)).squeeze(-1)).norm(dim=-1)
    status = torch.where(solved, torch.where(guards > 0, Status.GUARDED, Status.CONVERGED), Status.BREAKDOWN)
    count = torch.ones_like(guards)
    # M is factored in float64, but its columns have the precision of b
    error = rounding(M.norm(dim=-1).amax(-1), u.square().sum(-1), clean.norm(dim=-1), b.dtype)
    return Solution(
        u.to(b.dtype).reshape(b.shape),
        pullback,
        count,
        torch.maximum(relative(residual, clean.norm(dim=-1)), error),
        status,
        guards,
        size,
        logdet,
        energy,
    )
