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
    guard = guard and system.noise is not None
    dtype = accumulate_dtype(b.device)
    gram, noise, pulls = _columns(system, b, dtype)
    # unmeasured entries have zero rows: they become rows of a diagonal matrix of the size of M, with a zero right-hand
    # side; a system without noise has no such entries
    outside = ((gram == 0) & (noise == 0)).all(-1)  # (n, m)
    largest = (gram + noise).diagonal(dim1=-2, dim2=-1).abs().amax(-1, keepdim=True)
    largest = torch.where((largest > 0) & torch.isfinite(largest), largest, 1)  # (n, 1)
    noise = noise + torch.diag_embed(outside * largest)

    rhs = b.flatten(1).to(dtype)
    finite = torch.isfinite(gram).flatten(1).all(1) & torch.isfinite(rhs).all(1)
    gram = torch.where(finite.reshape(-1, 1, 1), gram, 0)
    clean = torch.where(finite.unsqueeze(1), rhs, 0)
    guards = torch.zeros(len(b), dtype=torch.int64, device=b.device)
    kept: Tensor | None = None
    resolved: Tensor | None = None
    if guard:
        gram, refused, kept, resolved = _directions(gram, noise, torch.finfo(b.dtype).eps)
        guards = refused.sum(-1)
    M = gram + noise
    u, logdet, regular = solve(M, clean)
    logdet = logdet - (outside * largest.log()).sum(-1)
    solved = finite & regular
    energy = torch.where(solved, (clean * u).sum(-1), torch.nan)
    if kept is not None:
        # of the size of M, or rounding errors of the projection could be larger than M
        rest = largest.unsqueeze(-1) * (torch.eye(size, dtype=dtype, device=b.device) - kept)
        projected = solve(kept @ M @ kept + rest, (kept @ clean.unsqueeze(-1)).squeeze(-1))[0]
        u = torch.where(guards.unsqueeze(1) > 0, projected, u)
    u = torch.where(solved.unsqueeze(1) & ~outside, u, 0)

    # directions without signal, as of redundant rows of A, have a large u whose pullbacks would cancel up to rounding
    moving = u if resolved is None else (resolved @ u.unsqueeze(-1)).squeeze(-1)
    moving = torch.where(outside, 0, moving)
    pullback = torch.zeros_like(pulls[0], dtype=dtype)
    for j, pull in enumerate(pulls):
        weight = moving[:, j].reshape(-1, *(1,) * (pull.ndim - 1))
        pullback = torch.where(weight == 0, pullback, pullback + weight * pull)
    residual = (clean - (M @ u.unsqueeze(-1)).squeeze(-1)).norm(dim=-1)
    status = torch.where(solved, torch.where(guards > 0, Status.GUARDED, Status.CONVERGED), Status.BREAKDOWN)
    count = torch.ones_like(guards)
    # M is factored in float64, but its columns have the precision of b
    error = rounding(M.norm(dim=-1).amax(-1), u.square().sum(-1), clean.norm(dim=-1), b.dtype)
    return Solution(
        u.to(b.dtype).reshape(b.shape),
        pullback.to(b.dtype),
        count,
        torch.maximum(relative(residual, clean.norm(dim=-1)), error),
        status,
        guards,
        size,
        logdet,
        energy,
    )


def _columns(system: System, b: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Form A V Aᵀ and Σ_y, `(n, m, m)` in `dtype`, and the pullbacks of the unit vectors, each `(n, *event)`."""
    signal_columns, noise_columns, pulls = [], [], []
    for j in range(b[0].numel()):
        e = torch.zeros_like(b[:1]).flatten(1)
        e[:, j] = 1
        e = e.reshape(1, *b.shape[1:]).expand_as(b)
        signal, noise_column, pull = system.product(e)
        signal_columns.append(signal.flatten(1))
        noise_columns.append(noise_column.flatten(1))
        pulls.append(pull)
    return torch.stack(signal_columns, -1).to(dtype), torch.stack(noise_columns, -1).to(dtype), pulls


def _directions(gram: Tensor, noise: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Apply the guard to the eigenvectors of A V Aᵀ.

    Args:
        gram: (n, m, m). A V Aᵀ.
        noise: (n, m, m). Σ_y.
        eps: The precision of gram.

    Returns:
        A V Aᵀ with the absolute values of its eigenvalues; which eigenvalues are refused `(n, m)`; and the projections
        `(n, m, m)` onto the directions that are kept, and onto those whose signal exceeds rounding errors.
    """
    values, vectors = eigh((gram + gram.mT) / 2)

    def projection(chosen: Tensor) -> Tensor:
        return (vectors * chosen.to(vectors).unsqueeze(-2)) @ vectors.mT

    smallest_noise = noise.diagonal(dim1=-2, dim2=-1).amin(-1, keepdim=True)
    # rounding errors of gram along an eigenvector; those of redundant rows of A have no other value
    spread = (gram.diagonal(dim1=-2, dim2=-1).abs().unsqueeze(1) @ vectors.square()).squeeze(1)
    rounded = gram.shape[-1] * eps * spread
    refused = values < -GUARD_SLACK * smallest_noise - rounded
    return projection(values.abs()), refused, projection(~refused), projection(values.abs() > rounded)
