"""A short check of user-defined operators, when observations are created with them.

A nonlinear function, or one that mixes the samples of a batch, would give wrong posteriors without an error.
`operators.check` is the thorough version.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import InputError
from .base import Operator
from .check import SINGLE
from .function import Function

SAMPLES = 2  # the smallest batch in which samples could be mixed
PACKAGE = __name__.partition(".")[0]


class UserOperatorError(InputError):
    """An operator that the user wrote is not linear, has a wrong adjoint, or mixes samples."""


def has_function(A: Operator) -> bool:
    """Whether a part of the operator is a `Function`."""
    return isinstance(A, Function) or any(map(has_function, A.children()))


def is_user_defined(A: Operator) -> bool:
    """Whether a part of the operator is a `Function` or a class from outside the library."""
    own = isinstance(A, Function) or type(A).__module__.partition(".")[0] != PACKAGE
    return own or any(map(is_user_defined, A.children()))


def require_linear(A: Operator, like: Tensor) -> None:
    """Check operators of the user on two random samples; other operators are not evaluated.

    Args:
        A: The operator of n ≥ 1 observations.
        like: `(n, *event)` or `(1, *event)`. The shape, dtype and device of its samples.

    Raises:
        UserOperatorError: If A is not linear, its adjoint is wrong, or it mixes the samples of a batch.
    """
    if not is_user_defined(A):
        return
    n = min(SAMPLES, A.batch or SAMPLES)
    A = A[:n]
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(n, *like.shape[1:], generator=generator).to(like) for _ in range(2))
    ya, yb = A(a), A(b)
    size = max(float(ya.norm()), float(yb.norm()))
    _require(
        A(2 * a - 3 * b) - (2 * ya - 3 * yb),
        size,
        "is not linear: A(2a − 3b) differs from 2A(a) − 3A(b). Subtract a constant part of A from y; a measurement "
        "that is not linear is an operators.Channel",
    )
    alone = torch.cat([A[i : i + 1](a[i : i + 1]) for i in range(n)])
    _require(alone - ya, size, "mixes samples: A(x) of one sample depends on the others of its batch")
    product = (ya * yb).double().sum() - (a * A.adjoint(yb)).double().sum()
    _require(product, float(ya.norm()) * float(yb.norm()), "has a wrong adjoint: ⟨Aa, y⟩ differs from ⟨a, Aᵀy⟩")


def _require(difference: Tensor, size: float, fault: str) -> None:
    error = float(difference.norm())
    if not error <= SINGLE * size:  # NaN is not
        raise UserOperatorError(
            f"A {fault} (relative error {error / size if size else error:.1e}). See operators.check"
        )
