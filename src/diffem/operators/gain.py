r"""How strongly A measures: the squared norms of its rows, diag(AAᵀ), exactly or on average.

White noise of variance v in x has variance v·diag(AAᵀ) in y, which can be compared with the noise of y.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.randomness import Stream
from .base import Operator


def mean_gain(A: Operator, y: Tensor) -> Tensor:
    """Compute diag(AAᵀ) if AAᵀ is diagonal, otherwise estimate its mean over the measured entries.

    The result is positive and broadcastable to y `(n, *m)`.

    The estimate is ‖Aᵀz‖²/m with the same random signs z for every observation: one product with Aᵀ.
    """
    exact = A.gram_diagonal(y)
    if exact is not None:
        # the gain of an unmeasured entry is 0 and never used, so any positive number will do
        return torch.where(exact > 0, exact, 1)
    like = y if A.batch is not None else y[:1]
    u = Stream(0, "gain").uniform(torch.zeros(1, dtype=torch.int64, device=y.device), tuple(y.shape[1:]))
    z = torch.where(u < 0.5, -1, 1).to(y.dtype).expand_as(like)
    measured = A.measured(like)
    z = z.contiguous() if measured is None else torch.where(measured, z, 0)
    power = A.adjoint(z).flatten(1).square().sum(1) / z.flatten(1).square().sum(1).clamp(min=1)
    return torch.where(power > 0, power, 1).reshape(-1, *(1,) * (y.ndim - 1))
