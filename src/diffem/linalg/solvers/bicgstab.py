"""BiCGSTAB, batched, for non-symmetric systems in constant memory (van der Vorst, 1992). Two products per iteration."""

import torch
from torch import Tensor

from ..inner import axpy, choose, dot
from .system import (
    Solution,
    Status,
    System,
    beyond_recovery,
    final_status,
    merit,
    relative,
    rounding,
    stop_ratio,
    violates,
)


def bicgstab(
    system: System, b: Tensor, *, iterations: int, tolerance: float | None = None, guard: bool = True
) -> Solution:
    """Solve M u = b from u = 0. b: `(n, *m)`. One iteration is two products, hence two VJPs.

    Its residual may grow by orders of magnitude before it falls; see `system.py` for which iterate is returned.
    """
    definite = system.noise is not None
    r = p = shadow = b
    bb = dot(b, b)
    rho = bb
    status = torch.where(torch.isfinite(bb), Status.ITERATIONS, Status.BREAKDOWN)
    path = _Path(b, bb, status, bb * stop_ratio(b, tolerance) ** 2, definite)
    products = 0

    for _ in range(iterations):
        if tolerance is not None and products and not path.active.any():
            break

        # BiCG half step along p
        mp, pull = path.product(system, p, guard and definite)
        shadow_mp = dot(shadow, mp)
        path.stop((shadow_mp == 0) | ~torch.isfinite(shadow_mp), Status.BREAKDOWN)
        active = path.active
        path.count = path.count + active
        alpha = torch.where(active, rho / torch.where(active, shadow_mp, 1), 0)
        s = axpy(-alpha, mp, r)
        path.advance(alpha, p, pull, s)

        # residual-minimising half step along s
        ms, pull = path.product(system, s, guard and definite)
        products += 2
        ms_ms = dot(ms, ms)
        path.stop((ms_ms == 0) | ~torch.isfinite(ms_ms), Status.BREAKDOWN)
        active = path.active
        path.bound(ms_ms)
        omega = torch.where(active, dot(ms, s) / torch.where(active, ms_ms, 1), 0)
        r = axpy(-omega, ms, s)
        path.advance(omega, s, pull, r)

        rho_next = dot(shadow, r)
        path.stop((rho_next == 0) | (omega == 0), Status.BREAKDOWN)
        active = path.active
        beta = torch.where(active, rho_next / torch.where(active, rho, 1) * alpha / torch.where(active, omega, 1), 0)
        p = axpy(beta, axpy(-omega, mp, p), r)
        rho = rho_next

    return path.solution(products, tolerance)


class _Path:
    """The iterates, and the best of them, per sample."""

    def __init__(self, b: Tensor, bb: Tensor, status: Tensor, target: Tensor, definite: bool) -> None:
        self.b, self.bb, self.target, self.definite = b, bb, target, definite
        self.status = torch.where(bb <= target, Status.CONVERGED, status)
        self.count = torch.zeros_like(status)
        self.u = self.best_u = torch.zeros_like(b)
        self.rr = self.best_rr = bb
        self.squares = self.best_squares = torch.zeros_like(bb)  # Σ ‖u‖² over the iterates
        self.norm = torch.zeros_like(bb)  # ‖Ms‖/‖s‖ of all iterations, which is at most ‖M‖
        self.start = torch.zeros_like(bb) if definite else bb
        self.last = self.start  # the merit of u
        self.pullback: Tensor | None = None
        self.best_pullback: Tensor | None = None

    @property
    def active(self) -> Tensor:
        return self.status == Status.ITERATIONS

    def stop(self, where: Tensor, reason: Status) -> None:
        self.status = torch.where(self.active & where, reason, self.status)

    def bound(self, ms_ms: Tensor) -> None:
        """Update the estimate of ‖M‖ from ‖Ms‖², s being the residual of the half step."""
        ratio = (ms_ms / torch.where(self.active, self.rr, 1)).sqrt()
        self.norm = torch.where(self.active, torch.maximum(self.norm, ratio), self.norm)

    def product(self, system: System, p: Tensor, guard: bool) -> tuple[Tensor, Tensor]:
        """Compute Mp and the pullback of p, and apply the curvature guard to p."""
        signal, noise, pull = system.product(p)
        if guard:
            self.stop(violates(dot(p, signal), dot(p, noise)), Status.GUARDED)
        return signal + noise, pull

    def advance(self, step: Tensor, direction: Tensor, pull: Tensor, r: Tensor) -> None:
        """Set u ← u + step · direction with residual r. Samples that have stopped keep their u."""
        if self.pullback is None:
            self.pullback = self.best_pullback = torch.zeros_like(pull)
        assert self.best_pullback is not None
        active = self.active
        self.u = axpy(step, direction, self.u)
        self.pullback = axpy(step, pull, self.pullback)
        self.rr = torch.where(active, dot(r, r), self.rr)
        self.squares = self.squares + torch.where(active, dot(self.u, self.u), 0)
        self.stop(self.rr <= self.target, Status.CONVERGED)
        self.stop(beyond_recovery(self.rr, self.bb, r.dtype), Status.DIVERGED)
        self.last = torch.where(active, merit(self.u, self.b, r, self.rr, self.definite), self.last)
        better = active & (self.last <= self.start) & (self.rr <= self.best_rr)
        better = better | (active & (self.status == Status.CONVERGED))
        self.best_u, self.best_pullback = (
            choose(better, self.u, self.best_u),
            choose(better, self.pullback, self.best_pullback),
        )
        self.best_rr = torch.where(better, self.rr, self.best_rr)
        self.best_squares = torch.where(better, self.squares, self.best_squares)

    def solution(self, products: int, tolerance: float | None) -> Solution:
        assert self.best_pullback is not None, "bicgstab needs at least one iteration"
        self.stop(~(self.last <= self.start), Status.DIVERGED)
        guards = ((self.status == Status.GUARDED) | (self.status == Status.DIVERGED)).to(self.count.dtype)
        # iterates may be much larger than the one returned, and the rounding errors of all remain in the residual
        error = rounding(self.norm, self.best_squares, self.bb.sqrt(), self.b.dtype)
        residual, status = final_status(relative(self.best_rr.sqrt(), self.bb.sqrt()), error, self.status, tolerance)
        return Solution(self.best_u, self.best_pullback, self.count, residual, status, guards, products)
