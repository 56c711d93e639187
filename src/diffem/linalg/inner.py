"""Per-sample inner products, summed in float64 where the device has it."""

import torch
from torch import Tensor


def accumulate_dtype(device: torch.device) -> torch.dtype:
    """float64, except on devices without it (Apple's mps)."""
    return torch.float32 if device.type == "mps" else torch.float64


def dot(a: Tensor, b: Tensor) -> Tensor:
    """aᵢᵀbᵢ for every sample i: `(n, *shape)`, `(n, *shape)` → `(n,)`."""
    dtype = accumulate_dtype(a.device)
    return torch.linalg.vecdot(a.flatten(1).to(dtype), b.flatten(1).to(dtype))


def axpy(alpha: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Compute yᵢ + αᵢxᵢ. With αᵢ = 0 the result is yᵢ even if xᵢ is not finite (after a breakdown it may be NaN).

    Args:
        alpha: (n,). In the accumulation dtype.
        x, y: (n, *shape).
    """
    alpha = alpha.to(x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
    return torch.where(alpha == 0, y, y + alpha * x)


def choose(where: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Select aᵢ for samples whose flag `where` `(n,)` is set, otherwise bᵢ; a, b: `(n, *shape)`."""
    return torch.where(where.reshape(-1, *(1,) * (a.ndim - 1)), a, b)
