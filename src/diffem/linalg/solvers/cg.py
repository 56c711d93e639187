"""Conjugate gradients, batched, every scalar per sample (Hestenes & Stiefel, 1952; the paper's Algorithm 4)."""

import torch
from torch import Tensor

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
        active = status == Status.ITERATIONS
        if tolerance is not None and products and not active.any():
            break
        signal, pull = system.signal(p)
        noise = system.noise_matvec(p)
        products += 1
        p_signal, p_noise = dot(p, signal), dot(p, noise)
        curvature = p_signal + p_noise
        if guard:
            status = torch.where(active & violates(p_signal, p_noise), Status.GUARDED, status)
        broken = ~torch.isfinite(curvature) | (curvature == 0)
        status = torch.where((status == Status.ITERATIONS) & broken, Status.BREAKDOWN, status)
        active = status == Status.ITERATIONS
        count = count + active

        alpha = torch.where(active, rr / torch.where(active, curvature, 1), 0)
        u = axpy(alpha, p, u)
        pullback = axpy(alpha, pull, torch.zeros_like(pull) if pullback is None else pullback)
        r = axpy(-alpha, signal + noise, r)
        rr_next = dot(r, r)
        beta = torch.where(active, rr_next / torch.where(active, rr, 1), 0)
        p = torch.where(per(active, p), axpy(beta, p, r), p)
        rr = torch.where(active, rr_next, rr)
        status = torch.where(active & (rr <= target), Status.CONVERGED, status)

    assert pullback is not None, "cg needs at least one iteration"
    guards = (status == Status.GUARDED).to(count.dtype)
    return Solution(u, pullback, count, relative(rr.sqrt(), bb.sqrt()), status, guards, products)


def per(flags: Tensor, like: Tensor) -> Tensor:
    return flags.reshape(-1, *(1,) * (like.ndim - 1))
