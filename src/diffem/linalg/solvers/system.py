r"""The input and the output of a solver.

The posterior methods solve M u = b with M = Σ_y + A V Aᵀ, one system per sample, and then need Jᵀ Aᵀ u. Every product
A V Aᵀ p = σ² A (Jᵀ Aᵀ p) passes through JᵀAᵀp, the *pullback* of p, so a solver that builds u = Σ αᵢ pᵢ gets
JᵀAᵀu = Σ αᵢ JᵀAᵀpᵢ for free: k iterations cost k vector–Jacobian products, not k + 1.

V is a covariance, so the true M satisfies pᵀMp ≥ pᵀΣ_y p. A learned Jacobian may violate this along a direction p. The
system is then wrong along p, and further iterations would let the sample diverge. The *curvature guard* stops such a
sample at its current u, independently of the other samples, and counts the event.

For symmetric M ⪰ Σ_y the distance of u from the solution, in the norm of M, is known up to a constant: it is the
*merit* ½uᵀMu − bᵀu = −½ uᵀ(b + r) with r = b − Mu, and 0 at u = 0. Rounding (in `bicgstab`, from a condition number of
1/√eps on) and Jacobians that are not symmetric can make an iteration diverge from the solution. An iterate with a
positive merit is worse than u = 0 and is never returned: `cg` returns the last iterate before it; `bicgstab`, whose
residual is erratic, returns the iterate with the smallest residual. Such a u satisfies uᵀHu ≤ 4 bᵀH⁻¹b, H being the
symmetric part of M. A sample that ends with a positive merit is reported as diverged and counted with the guards.

A recurrence computes r without computing Mu again, and continues to decrease where b − Mu no longer does: products have
a rounding error of about ε‖M‖‖u‖, ε being half the machine epsilon. With a condition number of 1e6 in float32 this is
several per cent of ‖b‖. The larger of the two is reported as the residual, and a sample whose tolerance is below its
rounding error counts as `ROUNDED`, not as converged. No product is computed for this: ‖M‖ is estimated from the scalars
of the iteration.

If the noise of the measured values differs by orders of magnitude, so do the eigenvalues of M, and a few iterations
resolve only some of them. A diagonal S close to M^-½ removes most of that difference: M u = b is S M S w = S b with u =
S w, and the guard is unchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import torch
from torch import Tensor

from ..covariance import Covariance
from ..inner import dot

# rounding in pᵀ(AVAᵀ)p is relative to pᵀMp; below this fraction of pᵀΣ_y p a negative value is attributed to rounding
GUARD_SLACK = 1e-6


class Status(IntEnum):
    """How a sample's solve ended."""

    ITERATIONS = 0  # all iterations done
    CONVERGED = 1  # residual at or below the tolerance (or exactly zero)
    GUARDED = 2  # stopped by the curvature guard
    BREAKDOWN = 3  # a division by zero or a non-finite number stopped it
    DIVERGED = 4  # it ended, or was stopped, further from the solution than u = 0
    ROUNDED = 5  # the recurrence reached the tolerance, but rounding errors of the products exceed it


@dataclass(frozen=True)
class System:
    """M = Σ_y + A V Aᵀ for a batch, or S M S.

    Attributes:
        signal: p `(n, *m)` → (A V Aᵀ p `(n, *m)`, pullback of p `(n, *event)`); called once per product.
        noise: Σ_y, or None for a system without noise, which has no curvature guard.
        scale: (1 or n, *m). The positive diagonal of S. None: S = I.
    """

    signal: Callable[[Tensor], tuple[Tensor, Tensor]]
    noise: Covariance | None = None
    scale: Tensor | None = None

    def product(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Compute S A V Aᵀ S p and S Σ_y S p, `(n, *m)`, whose sum is S M S p, and the pullback of S p."""
        p = self.scaled(p)
        signal, pullback = self.signal(p)
        noise = torch.zeros_like(p) if self.noise is None else self.noise.matvec(p)
        return self.scaled(signal), self.scaled(noise), pullback

    def scaled(self, v: Tensor) -> Tensor:
        """S v."""
        return v if self.scale is None else self.scale * v


@dataclass
class Solution:
    """The solution u, its pullback JᵀAᵀu, and statistics per sample."""

    u: Tensor  # (n, *m)
    pullback: Tensor  # (n, *event)
    iterations: Tensor  # (n,) int
    residual: Tensor  # (n,) ‖b − Mu‖ / ‖b‖: that of the recurrence, or the rounding error of Mu if that is larger
    status: Tensor  # (n,) Status
    guards: Tensor  # (n,) int, directions or eigenvalues rejected by the guard, and solves that diverged
    products: int  # evaluations of `signal`, that is VJPs, for the whole batch at once
    logdet: Tensor | None = None  # (n,) log |M| over the measured entries, from solvers that form M
    energy: Tensor | None = None  # (n,) bᵀM⁻¹b from the same M, rejected directions included


class Solver(Protocol):
    def __call__(
        self, system: System, b: Tensor, *, iterations: int, tolerance: float | None = None, guard: bool = True
    ) -> Solution: ...


def violates(signal: Tensor, noise: Tensor) -> Tensor:
    """Whether pᵀ(AVAᵀ)p is negative beyond rounding, or NaN, `(n,)`."""
    return ~(signal >= -GUARD_SLACK * noise)


def merit(u: Tensor, b: Tensor, r: Tensor, rr: Tensor, definite: bool) -> Tensor:
    """Distance of u from the solution up to a constant, `(n,)`; for a system that may be indefinite, ‖r‖² = `rr`."""
    return -0.5 * dot(u, b + r) if definite else rr


def beyond_recovery(rr: Tensor, bb: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether rounding of the residual exceeds √eps of b, so that later iterates are inaccurate."""
    return ~(rr <= bb / torch.finfo(dtype).eps)


def stop_ratio(b: Tensor, tolerance: float | None) -> float:
    """The ratio ‖r‖/‖b‖ at which a sample stops: the tolerance, but not below rounding."""
    return max(tolerance or 0.0, 4 * torch.finfo(b.dtype).eps)


def relative(residual_norm: Tensor, b_norm: Tensor) -> Tensor:
    return torch.where(b_norm > 0, residual_norm / b_norm, torch.zeros_like(b_norm))


def rounding(norm: Tensor, squares: Tensor, b_norm: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounding error of b − Mu relative to ‖b‖, `(n,)`.

    Args:
        norm: (n,). An estimate of ‖M‖.
        squares: (n,). ‖u‖², or its sum over iterates if their errors accumulate.
        b_norm: (n,). ‖b‖.
        dtype: The precision of the products.
    """
    error = torch.finfo(dtype).eps / 2 * norm * squares.sqrt()
    return relative(error.nan_to_num(nan=0.0), b_norm)


def final_status(residual: Tensor, error: Tensor, status: Tensor, tolerance: float | None) -> tuple[Tensor, Tensor]:
    """The residual that is reported and the status, given the rounding error of the residual; all `(n,)`."""
    if tolerance is not None:
        status = torch.where((status == Status.CONVERGED) & (error > tolerance), Status.ROUNDED, status)
    return torch.maximum(residual, error), status
