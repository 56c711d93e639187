"""BiCGSTAB, batched, for non-symmetric systems in constant memory (van der Vorst, 1992). Two products per iteration."""

import torch
from torch import Tensor

from ..inner import axpy, dot
from .system import Solution, Status, System, relative, stop_ratio, violates


def bicgstab(
    system: System, b: Tensor, *, iterations: int, tolerance: float | None = None, guard: bool = True
) -> Solution:
    """Solve M u = b from u = 0. b: `(n, *m)`. One iteration is two products, hence two VJPs."""
    guard = guard and system.noise is not None
    r = p = shadow = b
    u = torch.zeros_like(b)
    bb = dot(b, b)
    target = bb * stop_ratio(b, tolerance) ** 2
    rho, rr = bb, bb
    status = torch.where(torch.isfinite(bb), Status.ITERATIONS, Status.BREAKDOWN)
    status = torch.where(bb <= target, Status.CONVERGED, status)
    count = torch.zeros_like(status)
    pullback: Tensor | None = None
    products = 0

    for _ in range(iterations):
        if tolerance is not None and products and not (status == Status.ITERATIONS).any():
            break

        # BiCG half step along p
        mp, pull, status = _product(system, p, status, guard)
        products += 1
        shadow_mp = dot(shadow, mp)
        status = _stop(status, (shadow_mp == 0) | ~torch.isfinite(shadow_mp), Status.BREAKDOWN)
        active = status == Status.ITERATIONS
        count = count + active
        alpha = torch.where(active, rho / torch.where(active, shadow_mp, 1), 0)
        u = axpy(alpha, p, u)
        pullback = axpy(alpha, pull, torch.zeros_like(pull) if pullback is None else pullback)
        s = axpy(-alpha, mp, r)
        rr = torch.where(active, dot(s, s), rr)
        status = _stop(status, rr <= target, Status.CONVERGED)

        # residual-minimising half step along s
        ms, pull, status = _product(system, s, status, guard)
        products += 1
        ms_ms = dot(ms, ms)
        status = _stop(status, (ms_ms == 0) | ~torch.isfinite(ms_ms), Status.BREAKDOWN)
        active = status == Status.ITERATIONS
        omega = torch.where(active, dot(ms, s) / torch.where(active, ms_ms, 1), 0)
        u = axpy(omega, s, u)
        pullback = axpy(omega, pull, pullback)
        r = axpy(-omega, ms, s)
        rr = torch.where(active, dot(r, r), rr)
        status = _stop(status, rr <= target, Status.CONVERGED)

        rho_next = dot(shadow, r)
        status = _stop(status, (rho_next == 0) | (omega == 0), Status.BREAKDOWN)
        active = status == Status.ITERATIONS
        beta = torch.where(active, rho_next / torch.where(active, rho, 1) * alpha / torch.where(active, omega, 1), 0)
        p = axpy(beta, axpy(-omega, mp, p), r)
        rho = rho_next

    assert pullback is not None, "bicgstab needs at least one iteration"
    guards = (status == Status.GUARDED).to(count.dtype)
    return Solution(u, pullback, count, relative(rr.sqrt(), bb.sqrt()), status, guards, products)


def _product(system: System, p: Tensor, status: Tensor, guard: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Mp, the pullback of p, and the status after the guard has looked at p."""
    signal, noise, pull = system.product(p)
    if guard:
        status = _stop(status, violates(dot(p, signal), dot(p, noise)), Status.GUARDED)
    return signal + noise, pull, status


def _stop(status: Tensor, where: Tensor, reason: Status) -> Tensor:
    return torch.where((status == Status.ITERATIONS) & where, reason, status)
