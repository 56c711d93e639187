"""Low rank plus diagonal: covariances of images, by the Woodbury identity."""

from __future__ import annotations

import copy
from typing import ClassVar

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.modes import in_default_modes
from ..core.shapes import per_sample
from .covariance import (
    Covariance,
    check_positive,
    log_positive,
    reciprocal,
    smallest_variance,
    with_variance,
)
from .inner import accumulate_dtype


class LowRank(Covariance):
    r"""Σ = D + UUᵀ, by Woodbury: Σ⁻¹ = D⁻¹ − D⁻¹U(I + UᵀD⁻¹U)⁻¹UᵀD⁻¹.

    Args:
        factor: U as `(r, *event)` or `(n, r, *event)`.
        variances: D as a number, `(*event)` or `(n, *event)`; axes of size 1 broadcast.
    """

    powers: ClassVar[dict[str, int]] = {"factor": 1, "variances": 2}
    axes: ClassVar[dict[str, int | None]] = {"factor": None, "variances": None}

    def __init__(self, factor: Tensor, variances: Tensor | float) -> None:
        super().__init__()
        if not isinstance(factor, Tensor) or not factor.is_floating_point() or factor.ndim < 2:
            raise InputError("factor must be a floating-point tensor of shape (r, *event) or (n, r, *event)")
        variances = torch.as_tensor(variances, dtype=factor.dtype, device=factor.device)
        self._store("factor", factor, None)
        self._store("variances", check_positive("variances", variances), None)

    def bind(self, event_ndim: int) -> LowRank:
        new, variances = copy.copy(self), self._tensors["variances"]
        event = self._tensors["factor"].shape[-event_ndim:]
        if variances.ndim in (0, event_ndim, event_ndim + 1):
            try:
                expanded = variances.expand(*variances.shape[:-event_ndim], *event)
            except RuntimeError:
                raise InputError(f"LowRank: variances {tuple(variances.shape)} do not fit {tuple(event)}") from None
            new._tensors = self._tensors | {"variances": expanded}
        return new._bind(factor=event_ndim + 1, variances=event_ndim)

    def _parts(self, event_ndim: int) -> tuple[Tensor, Tensor]:
        """U as `(1 or n, r, N)` and D as `(1 or n, N)`."""
        bound = self.bind(event_ndim)
        return bound._read("factor").flatten(2), bound._read("variances").flatten(1)

    def matvec(self, v: Tensor) -> Tensor:
        u, d = self._parts(v.ndim - 1)
        w = v.flatten(1)
        return (d * w + _lift(u, _project(u, w))).reshape(v.shape)

    def solve(self, v: Tensor) -> Tensor:
        # in float64: the two terms cancel in the directions of U
        u, d = (part.to(accumulate_dtype(v.device)) for part in self._parts(v.ndim - 1))
        inverse = reciprocal(d)
        w = v.flatten(1).to(d.dtype) * inverse
        coefficients = torch.cholesky_solve(_project(u, w).unsqueeze(-1), _capacitance(u, inverse)).squeeze(-1)
        return (w - inverse * _lift(u, coefficients)).to(v.dtype).reshape(v.shape)

    def filtered(self, v: Tensor, variance: Tensor | float) -> Tensor:
        # with B = D + sI: DB⁻¹v + sB⁻¹U(I + UᵀB⁻¹U)⁻¹UᵀB⁻¹v, whose terms do not cancel
        u, d = self._parts(v.ndim - 1)
        s = per_sample(variance, d)
        b = d + s
        w = v.flatten(1) / b
        coefficients = torch.cholesky_solve(_project(u, w).unsqueeze(-1), _capacitance(u, 1 / b)).squeeze(-1)
        return (d * w + s / b * _lift(u, coefficients)).reshape(v.shape)

    def sqrt(self, z: Tensor) -> Tensor:
        # With W = D^-½U = P diag(s) Qᵀ:  Σ = D^½ (I + P diag(s²) Pᵀ) D^½, and the bracket has root I + P
        # diag(√(1+s²)−1) Pᵀ.
        u, d = self._parts(z.ndim - 1)
        root = d.sqrt()
        _, s, p = torch.linalg.svd(u * reciprocal(root).unsqueeze(1), full_matrices=False)
        w = z.flatten(1)
        return (root * (w + _lift(p, _project(p, w) * ((1 + s**2).sqrt() - 1)))).reshape(z.shape)

    def logdet(self, event_shape: tuple[int, ...]) -> Tensor:
        u, d = self._parts(len(event_shape))
        chol = _capacitance(u, reciprocal(d))
        return log_positive(d).sum(1) + 2 * log_positive(chol.diagonal(dim1=-2, dim2=-1)).sum(-1)

    def diagonal(self, event_shape: tuple[int, ...]) -> Tensor:
        u, d = self._parts(len(event_shape))
        return (d + u.square().sum(1)).reshape(-1, *event_shape)

    def plus(self, variance: Tensor | float) -> LowRank:
        variances, ndim = with_variance(self, variance)
        new = LowRank._raw(factor=(self._tensors["factor"], self._shared_ndim["factor"]), variances=(variances, ndim))
        new._pending = self._pending
        return new

    def restrict(self, measured: Tensor) -> LowRank:
        ndim = measured.ndim - 1
        bound = self.bind(ndim)
        return LowRank._raw(
            factor=(bound._read("factor") * measured.unsqueeze(1), ndim + 1),
            variances=(bound._read("variances") * measured, ndim),
        )

    def conditional_variances(self, observed: Tensor, event_shape: tuple[int, ...]) -> Tensor:
        # given the observed entries s, the r latent variables have covariance (I + U_sᵀD_s⁻¹U_s)⁻¹
        seen, d_seen = self.restrict(observed)._parts(len(event_shape))
        u, d = self._parts(len(event_shape))
        chol = _capacitance(seen, reciprocal(d_seen))
        whitened = torch.linalg.solve_triangular(chol, u, upper=False)
        return (d + whitened.square().sum(1)).reshape(-1, *event_shape)

    def eigenvalue_floor(self) -> Tensor:
        return smallest_variance(self)


@in_default_modes
def _project(u: Tensor, w: Tensor) -> Tensor:
    """Uᵀw: `(1 or n, r, N)`, `(n, N)` → `(n, r)`; a shared U takes one matrix product."""
    return w @ u[0].T if len(u) == 1 else (u @ w.unsqueeze(-1)).squeeze(-1)


@in_default_modes
def _lift(u: Tensor, c: Tensor) -> Tensor:
    """Uc: `(1 or n, r, N)`, `(n, r)` → `(n, N)`."""
    return c @ u[0] if len(u) == 1 else (c.unsqueeze(1) @ u).squeeze(1)


@in_default_modes
def _capacitance(u: Tensor, inverse: Tensor) -> Tensor:
    """Cholesky factor of I + UᵀD⁻¹U, `(1 or n, r, r)`."""
    gram = (u * inverse.unsqueeze(1)) @ u.mT
    return torch.linalg.cholesky(gram + torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device))
