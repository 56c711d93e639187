"""The soft minimum of entropic transport on a GPU, in one pass over the pairs, without storing them.

For few coordinates, computing a distance is faster than reading it, and torch.compile does not generate such a kernel
for this formula.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

# block of pairs per warp: the fastest of fifteen shapes at 16,384 and 65,536 points
ROWS, COLUMNS = 8, 256


def soft_minimum(x: Tensor, y: Tensor, g: Tensor, epsilon: float) -> Tensor:
    """Compute −ε log mean_j exp((g_j − ‖x_i − y_j‖²)/ε), `(n,)`.

    Args:
        x: (d, n). Contiguous float32 coordinates, like y `(d, m)` and g `(m,)`.
    """
    (d, n), m = x.shape, y.shape[1]
    f = torch.empty_like(x[0])
    scale = math.log2(math.e) / epsilon  # the hardware computes exponentials to base 2
    with torch.cuda.device(x.device):
        _soft_minimum[(triton.cdiv(n, ROWS),)](
            x, y, g, f, n, m, scale, math.sqrt(scale), math.log2(m), d, ROWS, COLUMNS, num_warps=1
        )
    return f


@triton.jit  # type: ignore[untyped-decorator]
def _soft_minimum(x, y, g, f, n, m, scale, root, log_m, d: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # type: ignore[no-untyped-def]
    i = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    top = tl.full((ROWS,), float("-inf"), tl.float32)  # the largest exponent so far, and the sum relative to it
    total = tl.zeros((ROWS,), tl.float32)
    for start in range(0, m, COLUMNS):
        j = start + tl.arange(0, COLUMNS)
        potential = tl.load(g + j, j < m, float("-inf")) * scale
        exponent = tl.broadcast_to(potential[None, :], (ROWS, COLUMNS))
        for k in tl.static_range(d):
            a = tl.load(x + k * n + i, i < n, 0.0) * root
            b = tl.load(y + k * m + j, j < m, 0.0) * root
            apart = a[:, None] - b[None, :]
            exponent -= apart * apart
        higher = tl.maximum(top, tl.max(exponent, 1))
        total = total * tl.exp2(top - higher) + tl.sum(tl.exp2(exponent - higher[:, None]), 1)
        top = higher
    tl.store(f + i, (log_m - top - tl.log2(total)) / scale, i < n)
