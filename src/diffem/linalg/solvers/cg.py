"""Conjugate gradients, batched, every scalar per sample (Hestenes & Stiefel, 1952; the paper's Algorithm 4)."""

from typing import NamedTuple

import torch
from torch import Tensor

from ...core.compile import fused
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


def cg(system: System, b: Tensor, *, iterations: int, tolerance: float | None = None, guard: bool = True) -> Solution:
    """Solve M u = b from u = 0.

    Args:
        system: M.
        b: (n, *m). Right-hand sides.
        iterations: Number of iterations. Without a tolerance they run without synchronising with the device.
        tolerance: A sample stops at ‖r‖ ≤ tolerance·‖b‖, and the loop ends when all samples have stopped.
        guard: Whether the curvature guard is on (see `system.py`).
    """
    definite = system.noise is not None
    bb = dot(b, b)
    target = bb * stop_ratio(b, tolerance) ** 2
    status = torch.where(torch.isfinite(bb), Status.ITERATIONS, Status.BREAKDOWN)
    status = torch.where(bb <= target, Status.CONVERGED, status)
    zeros = torch.zeros_like(b)
    start = torch.zeros_like(bb) if definite else bb
    state: State | None = None
    products = 0

    for _ in range(iterations):
        if tolerance is not None and products and not (status == Status.ITERATIONS).any():
            break
        p = b if state is None else state.p
        signal, noise, pull = system.product(p)
        products += 1
        if state is None:
            nothing = torch.zeros_like(pull)
            none = torch.zeros_like(bb)
            state = State(b, b, bb, status, torch.zeros_like(status), zeros, nothing, zeros, nothing, bb, start, none)
        state = State(*_update(state, b, bb, start, signal, noise, pull, target, guard and definite, definite))
        status = state.status

    assert state is not None, "cg needs at least one iteration"
    diverged = (status == Status.ITERATIONS) & ~(state.last <= start)
    status = torch.where(diverged, Status.DIVERGED, status)
    guards = ((status == Status.GUARDED) | (status == Status.DIVERGED)).to(state.iterations.dtype)
    error = rounding(state.norm, dot(state.kept_u, state.kept_u), bb.sqrt(), b.dtype)
    residual, status = final_status(relative(state.kept_rr.sqrt(), bb.sqrt()), error, status, tolerance)
    return Solution(state.kept_u, state.kept_pullback, state.iterations, residual, status, guards, products)


class State(NamedTuple):
    """Vectors `(n, *m)`, pullbacks `(n, *event)`, scalars `(n,)`."""

    p: Tensor
    r: Tensor
    rr: Tensor
    status: Tensor
    iterations: Tensor
    u: Tensor
    pullback: Tensor
    kept_u: Tensor  # the last iterate that is no worse than u = 0
    kept_pullback: Tensor
    kept_rr: Tensor
    last: Tensor  # the merit of u
    norm: Tensor  # the largest 1/α, which is at most ‖M‖ and close to it after a few iterations


@fused
def _update(
    state: State,
    b: Tensor,
    bb: Tensor,
    start: Tensor,
    signal: Tensor,
    noise: Tensor,
    pull: Tensor,
    target: Tensor,
    guard: bool,
    definite: bool,
) -> tuple[Tensor, ...]:
    """One iteration along p, given its products."""
    p, r, rr, status, count, u, pullback, kept_u, kept_pullback, kept_rr, last, norm = state
    p_signal, p_noise = dot(p, signal), dot(p, noise)
    curvature = p_signal + p_noise
    running = status == Status.ITERATIONS
    if guard:
        status = torch.where(running & violates(p_signal, p_noise), Status.GUARDED, status)
    broken = ~torch.isfinite(curvature) | (curvature == 0)
    status = torch.where((status == Status.ITERATIONS) & broken, Status.BREAKDOWN, status)
    active = status == Status.ITERATIONS
    alpha = torch.where(active, rr / torch.where(active, curvature, 1), 0)
    norm = torch.where(active, torch.maximum(norm, curvature / torch.where(active, rr, 1)), norm)
    u = axpy(alpha, p, u)
    pullback = axpy(alpha, pull, pullback)
    r = axpy(-alpha, signal + noise, r)
    rr_next = dot(r, r)
    beta = torch.where(active, rr_next / torch.where(active, rr, 1), 0)
    p = torch.where(active.reshape(-1, *(1,) * (p.ndim - 1)), axpy(beta, p, r), p)
    rr = torch.where(active, rr_next, rr)
    status = torch.where(active & (rr <= target), Status.CONVERGED, status)
    status = torch.where(active & beyond_recovery(rr, bb, b.dtype), Status.DIVERGED, status)

    last = torch.where(active, merit(u, b, r, rr, definite), last)
    keep = active & ((status == Status.CONVERGED) | (last <= start))
    kept_u, kept_pullback = choose(keep, u, kept_u), choose(keep, pullback, kept_pullback)
    kept_rr = torch.where(keep, rr, kept_rr)
    return p, r, rr, status, count + active, u, pullback, kept_u, kept_pullback, kept_rr, last, norm
