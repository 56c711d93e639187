"""Conjugate gradients, batched, every scalar per sample (Hestenes & Stiefel, 1952; the paper's Algorithm 4)."""

import torch
from torch import Tensor

from ...fusion import fused
from ..inner import axpy, dot
from .system import Solution, Status, System, relative, stop_ratio, violates


def cg(system: System, b: Tensor, *, iterations: int, tolerance: float | None = None, guard: bool = True) -> Solution:
    """Solve M u = b from u = 0.

    b: `(n, *m)`. Runs `iterations` steps without reading anything back from the device; with a `tolerance`, a sample
    stops at ‖r‖ ≤ tolerance·‖b‖ and the loop ends when all have.
    """
    guard = guard and system.noise is not None
    r, p = b, b
    u = torch.zeros_like(b)
    rr = bb = dot(b, b)
    target = bb * stop_ratio(b, tolerance) ** 2
    status = torch.where(torch.isfinite(bb), Status.ITERATIONS, Status.BREAKDOWN)
    status = torch.where(bb <= target, Status.CONVERGED, status)
    count = torch.zeros_like(status)
    pullback: Tensor | None = None
    products = 0

    for _ in range(iterations):
        if tolerance is not None and products and not (status == Status.ITERATIONS).any():
            break
        signal, noise, pull = system.product(p)
        products += 1
        pullback = torch.zeros_like(pull) if pullback is None else pullback
        u, pullback, r, p, rr, status, count = _update(
            u, pullback, r, p, rr, status, count, signal, noise, pull, target, guard
        )

    assert pullback is not None, "cg needs at least one iteration"
    guards = (status == Status.GUARDED).to(count.dtype)
    return Solution(u, pullback, count, relative(rr.sqrt(), bb.sqrt()), status, guards, products)


@fused
def _update(
    u: Tensor,
    pullback: Tensor,
    r: Tensor,
    p: Tensor,
    rr: Tensor,
    status: Tensor,
    count: Tensor,
    signal: Tensor,
    noise: Tensor,
    pull: Tensor,
    target: Tensor,
    guard: bool,
) -> tuple[Tensor, ...]:
    """One iteration along p, given its products: vectors `(n, *m)`, `pull` and `pullback` `(n, *event)`, scalars `(n,)`."""
    p_signal, p_noise = dot(p, signal), dot(p, noise)
    curvature = p_signal + p_noise
    running = status == Status.ITERATIONS
    if guard:
        status = torch.where(running & violates(p_signal, p_noise), Status.GUARDED, status)
    broken = ~torch.isfinite(curvature) | (curvature == 0)
    status = torch.where((status == Status.ITERATIONS) & broken, Status.BREAKDOWN, status)
    active = status == Status.ITERATIONS
    alpha = torch.where(active, rr / torch.where(active, curvature, 1), 0)
    u = axpy(alpha, p, u)
    pullback = axpy(alpha, pull, pullback)
    r = axpy(-alpha, signal + noise, r)
    rr_next = dot(r, r)
    beta = torch.where(active, rr_next / torch.where(active, rr, 1), 0)
    p = torch.where(active.reshape(-1, *(1,) * (p.ndim - 1)), axpy(beta, p, r), p)
    rr = torch.where(active, rr_next, rr)
    status = torch.where(active & (rr <= target), Status.CONVERGED, status)
    return u, pullback, r, p, rr, status, count + active
