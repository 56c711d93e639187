r"""What a solver is given and what it returns.

The posterior methods solve M u = b with M = Σ_y + A V Aᵀ, one system per sample, and then need Jᵀ Aᵀ u. Every product
A V Aᵀ p = σ² A (Jᵀ Aᵀ p) passes through JᵀAᵀp, the *pullback* of p, so a solver that builds u = Σ αᵢ pᵢ gets
JᵀAᵀu = Σ αᵢ JᵀAᵀpᵢ for free: k iterations cost k vector–Jacobian products, not k + 1.

V is a covariance, so the true M satisfies pᵀMp ≥ pᵀΣ_y p. A learned Jacobian need not; where a direction violates it the
system is wrong along that direction, and solving on would send the sample away. That is the *curvature guard*: such a
sample stops with what it has, alone, and the guard is counted.

For symmetric M ⪰ Σ_y the distance of u from the solution, in the norm of M, is known but for a constant: it is the *merit*
½uᵀMu − bᵀu = −½ uᵀ(b + r) with r = b − Mu, and 0 at u = 0. Rounding (in `bicgstab`, from a condition number of 1/√eps on) and Jacobians that are
not symmetric can make an iteration move away from the solution, without limit. An iterate with a positive merit is worse than u = 0, and
never returned: `cg` returns the last one before, `bicgstab`, whose residual jumps, the one with the smallest residual. Such a u satisfies
uᵀHu ≤ 4 bᵀH⁻¹b, H being the symmetric part of M. A sample that ends with a positive merit is reported as diverged and counted with the guards.

Measured values whose noise differs by orders of magnitude give M as many different eigenvalues, and a few iterations resolve few of
them. A diagonal S close to M^-½ removes most of that difference: M u = b is S M S w = S b with u = S w, and the guard is the same.
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

# Rounding in pᵀ(AVAᵀ)p is relative to pᵀMp; below this fraction of pᵀΣ_y p a negative value is rounding, not curvature.
GUARD_SLACK = 1e-6


class Status(IntEnum):
    """How a sample's solve ended."""

    ITERATIONS = 0  # all iterations done
    CONVERGED = 1  # residual at or below the tolerance (or exactly zero)
    GUARDED = 2  # stopped by the curvature guard
    BREAKDOWN = 3  # a division by zero or a non-finite number stopped it
    DIVERGED = 4  # it ended further from the solution than u = 0 is, or stopped on the way there


@dataclass(frozen=True)
class System:
    """M = Σ_y + A V Aᵀ for a batch, or S M S.

    signal: p `(n, *m)` → (A V Aᵀ p `(n, *m)`, pullback of p `(n, *event)`); called once per product.
    noise: Σ_y, or None for a system that is all signal (then there is nothing to guard against).
    scale: the diagonal of S, positive, `(1 or n, *m)`; None: S = I.
    """

    signal: Callable[[Tensor], tuple[Tensor, Tensor]]
    noise: Covariance | None = None
    scale: Tensor | None = None

    def product(self, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """S A V Aᵀ S p and S Σ_y S p, `(n, *m)`, whose sum is the product with the matrix, and the pullback of S p."""
        p = self.scaled(p)
        signal, pullback = self.signal(p)
        noise = torch.zeros_like(p) if self.noise is None else self.noise.matvec(p)
        return self.scaled(signal), self.scaled(noise), pullback

    def scaled(self, v: Tensor) -> Tensor:
        """S v."""
        return v if self.scale is None else self.scale * v


@dataclass
class Solution:
    """u and JᵀAᵀu, and how they were reached, per sample."""

    u: Tensor  # (n, *m)
    pullback: Tensor  # (n, *event)
    iterations: Tensor  # (n,) int
    residual: Tensor  # (n,) ‖b − Mu‖ / ‖b‖ of that u, as the recurrence has it
    status: Tensor  # (n,) Status
    guards: Tensor  # (n,) int, directions (or eigenvalues) refused, and solves that diverged
    products: int  # evaluations of `signal`, that is VJPs, for the whole batch at once
    logdet: Tensor | None = None  # (n,) log |M| over the measured entries, from solvers that form M
    energy: Tensor | None = None  # (n,) bᵀM⁻¹b from the same M, refused directions included


class Solver(Protocol):
    def __call__(
        self, system: System, b: Tensor, *, iterations: int, tolerance: float | None = None, guard: bool = True
    ) -> Solution: ...


def violates(signal: Tensor, noise: Tensor) -> Tensor:
    """True where pᵀ(AVAᵀ)p is negative beyond rounding, or not a number. Both `(n,)`."""
    return ~(signal >= -GUARD_SLACK * noise)


def merit(u: Tensor, b: Tensor, r: Tensor, rr: Tensor, definite: bool) -> Tensor:
    """How far u is from the solution but for a constant, `(n,)`; for a system that need not be definite, ‖r‖² = `rr`."""
    return -0.5 * dot(u, b + r) if definite else rr


def beyond_recovery(rr: Tensor, bb: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether a residual has grown so far that rounding in it exceeds √eps of b: what follows cannot be accurate."""
    return ~(rr <= bb / torch.finfo(dtype).eps)


def stop_ratio(b: Tensor, tolerance: float | None) -> float:
    """‖r‖/‖b‖ at which a sample is done: the tolerance, and never below rounding, where directions are only noise."""
    return max(tolerance or 0.0, 4 * torch.finfo(b.dtype).eps)


def relative(residual_norm: Tensor, b_norm: Tensor) -> Tensor:
    return torch.where(b_norm > 0, residual_norm / b_norm, torch.zeros_like(b_norm))
