"""A check that an operator is linear, has the right adjoint, and treats samples independently."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from .base import Operator
from .function import Function

SINGLE = 1e-4  # largest relative error of a linear function that computes in float32


@dataclass(frozen=True)
class Finding:
    name: str
    error: float  # relative
    tolerance: float
    meaning: str

    @property
    def ok(self) -> bool:
        return self.error <= self.tolerance  # NaN is not

    def __str__(self) -> str:
        verdict = "ok    " if self.ok else "FAILED"
        return (
            f"  {verdict} {self.name}: relative error {self.error:.1e} (allowed {self.tolerance:.0e}); {self.meaning}"
        )


@dataclass(frozen=True)
class Verdict:
    operator: str
    x_shape: tuple[int, ...]
    y_shape: tuple[int, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        return all(finding.ok for finding in self.findings)

    def __bool__(self) -> bool:
        return self.ok

    def __str__(self) -> str:
        head = f"{self.operator}: x {self.x_shape} -> y {self.y_shape}: " + ("usable" if self.ok else "NOT USABLE")
        return "\n".join([head, *map(str, self.findings)])


class OperatorError(InputError):
    """An operator failed its check; `verdict` holds the findings."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(str(verdict))
        self.verdict = verdict


def check(
    A: Operator | Callable[[Tensor], Tensor],
    x_shape: tuple[int, ...],
    *,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
    seed: int = 0,
) -> Verdict:
    """Test `A` on random samples of shape `x_shape`.

    Returns the verdict, or raises `OperatorError` with it if a test fails.

    Args:
        A: An operator. A plain callable is checked as `Function(A, x_shape)`.
        x_shape: The shape of a sample.
        dtype: The precision of the test. Default: float64; float32 if the errors in float64 are those of float32, since
            a function may contain float32 constants.
        device: The device.
        seed: Seed of the random samples.
    """
    if isinstance(x_shape, int):
        raise InputError(f"check: x_shape is the shape of a sample, such as (8, 8), got {x_shape}")
    if not isinstance(A, Operator):
        A = Function(A, x_shape)
    try:
        return _checked(A, x_shape, dtype or torch.float64, device, seed)
    except OperatorError as error:
        if dtype is not None or not all(finding.error <= SINGLE for finding in error.verdict.findings):
            raise
        return _checked(A, x_shape, torch.float32, device, seed)


def _checked(
    A: Operator, x_shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, seed: int
) -> Verdict:
    """Test an operator in one precision."""
    A = A.to(device=device, dtype=dtype).resolve_axes(torch.zeros(1, *x_shape, dtype=dtype, device=device))
    n = A.batch or 3
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype).to(device)

    tolerance = 1e-10 if dtype == torch.float64 else SINGLE
    x1, x2 = random(n, *x_shape), random(n, *x_shape)
    y1, y2 = A(x1), A(x2)
    findings = []

    def compare(name: str, got: Tensor, expected: Tensor, scale: Tensor, meaning: str) -> None:
        difference = (got - expected).flatten(1).norm(dim=1) if got.ndim > 1 else (got - expected).abs()
        error = torch.where(difference == 0, 0, difference / scale)
        findings.append(Finding(name, float(error.max()), tolerance, meaning))

    def size(*ys: Tensor) -> Tensor:
        return torch.stack([y.flatten(1).norm(dim=1) for y in ys]).amax(0)

    compare("linearity", A(2 * x1 - 3 * x2), 2 * y1 - 3 * y2, size(y1, y2), "A(2a − 3b) = 2A(a) − 3A(b)")
    compare("zero", A(torch.zeros_like(x1)), torch.zeros_like(y1), size(y1), "A(0) = 0")
    y = random(*y1.shape)
    xt = A.adjoint(y)
    if xt.shape != x1.shape:
        raise OperatorError(
            Verdict(
                repr(A),
                tuple(x_shape),
                tuple(y1.shape[1:]),
                (
                    Finding(
                        "adjoint shape", float("inf"), 0, f"Aᵀy has shape {tuple(xt.shape)}, x has {tuple(x1.shape)}"
                    ),
                ),
            )
        )
    left, right = (y1 * y).flatten(1).sum(1), (x1 * xt).flatten(1).sum(1)
    # relative to ‖Ax‖‖y‖: the inner product itself may vanish by chance
    compare("adjoint", left, right, size(y1) * size(y), "⟨Ax, y⟩ = ⟨x, Aᵀy⟩ for every sample")
    alone = torch.cat([A[i : i + 1](x1[i : i + 1]) for i in range(n)])
    compare("batch independence", alone, y1, size(y1), "the result for sample i does not depend on the batch")
    alone = torch.cat([A[i : i + 1].adjoint(y[i : i + 1]) for i in range(n)])
    compare("batch independence of the adjoint", alone, xt, size(xt), "the same for Aᵀ")
    again = A(x1)
    compare("repeatability", again, y1, size(y1), "two calls give the same result")

    verdict = Verdict(repr(A), tuple(x_shape), tuple(y1.shape[1:]), tuple(findings))
    if not verdict.ok:
        raise OperatorError(verdict)
    return verdict
