r"""The information G = AᵀΣ_y⁻¹A without a basis: functions of G from products with A and Aᵀ alone.

For coils, resampling, non-circular blurs or a user's own function, no basis is known in which G is diagonal, and images
are too large to compute one. A function of G is then applied to a vector u in its range by Lanczos' method: k products
with G give an orthonormal basis Q of span{u, Gu, …, Gᵏ⁻¹u} in which G is a tridiagonal matrix T, and

    f(G) u ≈ ‖u‖ Q f(T) e₁,

which is exact once k reaches the number of distinct eigenvalues in u. The null space of G, most of x if little is
measured, is treated exactly: f(G) x = f(0) x + h(G) Gx with h(g) = (f(g) − f(0))/g.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.randomness import Stream
from ..core.shapes import per_sample
from ..linalg import Covariance
from ..linalg.inner import dot
from ..operators import Compose, Mask, Operator
from ..operators.spectrum import Function

ITERATIONS = 32  # k, products with G
ROUNDING = 256  # a new direction shorter than this many units of rounding is discarded


@dataclass(frozen=True)
class Krylov:
    """G of n observations, in units of `weight`.

    Attributes:
        A: The operators.
        noise: Σ_y on the measured entries.
        like: Measurements `(n, *measurement)`, for their shape, dtype and device.
        x_shape: Shape of one sample.
        weight: () or (n,). Factor of A: a unit of x, or 0 to remove an observation.
        iterations: k.
    """

    A: Operator
    noise: Covariance
    like: Tensor
    x_shape: tuple[int, ...]
    weight: Tensor
    iterations: int = ITERATIONS

    @property
    def kind(self) -> str:
        """Name of the operator: unlike a basis, a matrix-free representation does not apply to other operators."""
        return f"products with {_name(self.A)}"

    def scaled(self, scale: float) -> Krylov:
        """G in units of `scale`: multiplied by its square."""
        return replace(self, weight=self.weight * scale)

    def only(self, known: Tensor) -> Krylov:
        """Set G to 0 for observations whose flag `known` `(n,)` is False."""
        return replace(self, weight=self.weight * known.to(self.like))

    def isotropic(self) -> None:
        return None

    def combine(self, *terms: tuple[Function, Tensor]) -> Tensor:
        """Σ f(G) x over the terms (f, x `(n, *event)`)."""
        return functools.reduce(torch.add, (_Symmetric.apply(self, function, x) for function, x in terms))

    def solve(self, r: Tensor, precision: Tensor) -> Tensor:
        """Compute (precision·I + G)⁻¹ AᵀΣ_y⁻¹ r, `(n, *event)`; r: `(n, *measurement)`, precision: `()` or `(n,)`."""
        return self._on_range(lambda gains: 1 / (per_sample(precision, gains) + gains), self._back(r))

    def forward(self, x: Tensor) -> Tensor:
        """A x, `(n, *measurement)`."""
        return self.A(per_sample(self.weight, x) * x)

    def simulated_noise(self) -> Tensor:
        """Draw measurement noise, `(n, *measurement)`, from the global generator."""
        return self.noise.sqrt(torch.randn_like(self.like))

    def extent(self) -> tuple[Tensor, Tensor]:
        """Share of x that each observation determines at scale 1, by one probe, and its smallest noise, `(≤ n,)`.

        Observations that measure nothing are left out.
        """
        index = torch.arange(len(self.like), device=self.like.device)
        probe = Stream(0, "probe").normal(index, self.x_shape, dtype=self.like.dtype).sign()
        u = self._product(probe)
        space = self._lanczos(u)
        determined, largest = _applied(lambda gains: 1 / (1 + gains), u, space), space[0][:, -1]
        share = dot(probe, determined).double() / probe[0].numel()
        seen = largest > 0
        return share[seen].clamp(0, 1).cpu(), largest[seen].rsqrt().cpu()

    def _back(self, r: Tensor) -> Tensor:
        """AᵀΣ_y⁻¹ r, `(n, *event)`."""
        x = self.A.adjoint(self.noise.solve(r))
        return per_sample(self.weight, x) * x

    def _product(self, x: Tensor) -> Tensor:
        return self._back(self.forward(x))

    def _function(self, function: Function, x: Tensor) -> Tensor:
        """f(G) x, `(n, *event)`."""
        nothing = function(torch.zeros(len(x), 1, dtype=torch.float64, device=x.device))  # f(0), (n, 1) or (1, 1)

        def slope(gains: Tensor) -> Tensor:
            positive = gains > 0
            return torch.where(positive, (function(gains) - nothing) / torch.where(positive, gains, 1), 0)

        outside = nothing.to(x).reshape(-1, *(1,) * (x.ndim - 1)) * x
        return outside + self._on_range(slope, self._product(x))

    def _on_range(self, function: Function, u: Tensor) -> Tensor:
        """f(G) u for u `(n, *event)` in the range of G."""
        return _applied(function, u, self._lanczos(u))

    def _lanczos(self, u: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Eigenvalues `(n, k)`, at least 0, and eigenvectors `(n, k, k)` of T, in float64, and Q as `(n, k, N)`.

        Once the space is exhausted, vectors of Q and rows of T are 0.
        """
        n, size = len(u), u[0].numel()
        k = min(self.iterations, size, self.like[0].numel())
        basis = u.new_zeros(n, k, size)
        T = torch.zeros(n, k, k, dtype=torch.float64, device=u.device)
        w = u.reshape(n, 1, size)
        for j in range(k):
            length = dot(w, w).double().sqrt()
            rounding = ROUNDING * torch.finfo(u.dtype).eps * T[:, :j, :j].flatten(1).amax(1) if j else 0
            alive = length > rounding
            q = torch.where(alive, 1 / length, 0).to(w).reshape(n, 1, 1) * w
            basis[:, j] = q[:, 0]
            if j:
                T[:, j - 1, j] = T[:, j, j - 1] = torch.where(alive, length, 0)
            w = self._product(q.reshape(u.shape)).reshape(n, 1, size)
            T[:, j, j] = dot(q, w).double()
            known = basis[:, : j + 1]
            for _ in range(2):  # orthogonalising twice avoids the loss of half of the digits
                w = w - (w @ known.mT) @ known
        ritz, vectors = torch.linalg.eigh(T)
        return ritz.clamp(min=0), vectors, basis


def _applied(function: Function, u: Tensor, space: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """Compute ‖u‖ Q f(T) e₁, `(n, *event)`, in the space of `_lanczos(u)`."""
    ritz, vectors, basis = space
    first = vectors[:, 0] * dot(u, u).double().sqrt().unsqueeze(1)  # ‖u‖ times the first row, (n, k)
    coefficients = (vectors * (function(ritz) * first).unsqueeze(1)).sum(-1).to(u)
    return (coefficients.unsqueeze(1) @ basis).reshape(u.shape)


def _name(A: Operator) -> str:
    """Name of the operator without masks on its measurements, so that hiding values does not change the kind."""
    parts = [_name(child) for child in A.children() if not isinstance(child, Mask)] if isinstance(A, Compose) else []
    return "∘".join(parts) or type(A).__name__


class _Symmetric(torch.autograd.Function):
    """f(G) x with the derivative f(G) of a linear map, instead of one through the Lanczos iterations."""

    @staticmethod
    def forward(ctx: Any, information: Krylov, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        ctx.information, ctx.function = information, function
        return information._function(function, x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, None, Tensor]:
        return None, None, ctx.information._function(ctx.function, gradient)
