"""GMRES without restarts, batched, for systems that are neither symmetric nor definite (Saad & Schultz, 1986)."""

import torch
from torch import Tensor

from ..inner import axpy, dot
from .system import Solution, Status, System, final_status, relative, rounding, violates


def gmres(
    system: System, b: Tensor, *, iterations: int, tolerance: float | None = None, guard: bool = True
) -> Solution:
    """Minimise ‖b − M u‖ over the Krylov space of dimension `iterations`, per sample. b: `(n, *m)`.

    A sample whose basis must stop early (converged, guarded, or the space is exhausted) keeps a smaller space: its
    unused columns of the Hessenberg matrix are replaced by unit vectors in rows it does not reach, which leaves its
    least-squares problem as it was and gives those columns the coefficient 0.
    """
    guard = guard and system.noise is not None
    bb = dot(b, b)
    beta = bb.sqrt()
    status = torch.where(torch.isfinite(bb), Status.ITERATIONS, Status.BREAKDOWN)
    status = torch.where(bb == 0, Status.CONVERGED, status)
    count = torch.zeros_like(status)
    residual = beta
    largest = torch.zeros_like(beta)  # ‖Mv‖ over the basis, which is at most ‖M‖

    basis = [_normalised(b, beta, status == Status.ITERATIONS)]
    pulls: list[Tensor] = []
    hessenberg = torch.zeros(len(b), iterations + 1, iterations, dtype=bb.dtype, device=b.device)
    columns = torch.arange(iterations, device=b.device)
    hessenberg[:, columns + 1, columns] = 1
    coefficients = torch.zeros(len(b), 0, dtype=bb.dtype, device=b.device)

    for j in range(iterations):
        active = status == Status.ITERATIONS
        if tolerance is not None and j and not active.any():
            break
        v = basis[j]
        signal, noise, pull = system.product(v)
        pulls.append(pull)
        v_signal, v_noise = dot(v, signal), dot(v, noise)
        if guard:
            status = torch.where(active & violates(v_signal, v_noise), Status.GUARDED, status)
        status = torch.where((status == Status.ITERATIONS) & ~torch.isfinite(v_signal), Status.BREAKDOWN, status)
        active = status == Status.ITERATIONS
        count = count + active

        w = signal + noise
        column = torch.zeros(len(b), iterations + 1, dtype=bb.dtype, device=b.device)
        norm_before = dot(w, w).sqrt()
        largest = torch.where(active, torch.maximum(largest, norm_before), largest)
        for _ in range(2):  # orthogonalising twice keeps the basis orthogonal to rounding
            for i, q in enumerate(basis):
                projection = torch.where(active, dot(q, w), 0)
                column[:, i] += projection
                w = axpy(-projection, q, w)
        norm = torch.where(active, dot(w, w).sqrt(), 0)
        # only rounding is left after orthogonalising: the space is exhausted, and the system is solved within it
        exhausted = active & (norm <= 1e2 * torch.finfo(b.dtype).eps * norm_before)
        column[:, j + 1] = torch.where(exhausted, 0, norm)
        hessenberg[:, :, j] = torch.where(active.unsqueeze(1), column, hessenberg[:, :, j])

        coefficients, residual = _least_squares(hessenberg[:, : j + 2, : j + 1], beta, count)
        if tolerance is not None:
            status = torch.where(active & (residual <= tolerance * beta), Status.CONVERGED, status)
        status = torch.where(active & exhausted, Status.CONVERGED, status)
        basis.append(_normalised(w, norm, status == Status.ITERATIONS))

    u = torch.zeros_like(b)
    pullback = torch.zeros_like(pulls[0])
    for j, pull in enumerate(pulls):
        used = torch.where(j < count, coefficients[:, j], 0)
        u = axpy(used, basis[j], u)
        pullback = axpy(used, pull, pullback)
    guards = (status == Status.GUARDED).to(count.dtype)
    reported, status = final_status(
        relative(residual, beta), rounding(largest, dot(u, u), beta, b.dtype), status, tolerance
    )
    return Solution(u, pullback, count, reported, status, guards, len(pulls))


def _normalised(w: Tensor, norm: Tensor, active: Tensor) -> Tensor:
    """Return w/‖w‖ for samples that continue, 0 for the others."""
    scale = torch.where(active, 1 / torch.where(active, norm, 1), 0)
    return axpy(scale, w, torch.zeros_like(w))


def _least_squares(h: Tensor, beta: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """argmin ‖βe₁ − Hz‖ and its value; h: `(n, k+1, k)`, beta: `(n,)` → `(n, k)`, `(n,)`.

    count: `(n,)`. The number of columns in use; the others are unit vectors, in no units of M.
    """
    rhs = torch.zeros(*h.shape[:2], 1, dtype=h.dtype, device=h.device)
    rhs[:, 0, 0] = torch.where(torch.isfinite(beta), beta, 0)
    h = torch.nan_to_num(h)
    q, r = torch.linalg.qr(h)
    # a zero on the diagonal means that M is singular on the space; the minimum-norm solution has no component there
    used = torch.arange(h.shape[-1], device=h.device) < count.unsqueeze(1)
    diagonal = r.diagonal(dim1=-2, dim2=-1).abs()
    largest = diagonal.where(used, 0).amax(-1, keepdim=True)
    singular = used & (diagonal <= 1e-14 * largest.clamp(min=1e-300))
    r = r + torch.diag_embed(singular.to(r.dtype) * 1e300)
    z = torch.linalg.solve_triangular(r, q.mT @ rhs, upper=True)
    return z.squeeze(-1), (rhs - h @ z).squeeze(-1).norm(dim=-1)
