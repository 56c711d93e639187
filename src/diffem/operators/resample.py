"""Low resolution: each axis is reduced by a matrix, y = R_h x R_wᵀ."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .base import Operator, image_axes

MODES = ("bicubic", "mean")


class Downsample(Operator):
    """Reduce height and width by an integer factor.

    Args:
        factor: The factor. x is `(n, ..., H, W)` with H and W multiples of it.
        mode: 'bicubic', antialiased (the filter of `torch.nn.functional.interpolate(..., antialias=True)`), or
            'mean' over blocks of factor×factor.
    """

    def __init__(self, factor: int, mode: str = "bicubic") -> None:
        super().__init__()
        if mode not in MODES:
            raise InputError(f"Downsample: mode must be one of {', '.join(MODES)}, got {mode!r}")
        if not isinstance(factor, int) or factor < 1:
            raise InputError(f"Downsample: factor must be a positive integer, got {factor!r}")
        self.factor, self.mode = factor, mode

    def config(self) -> dict[str, Any]:
        return {"factor": self.factor, "mode": self.mode}

    def _forward(self, x: Tensor) -> Tensor:
        image_axes(x, "x", "Downsample")
        height, width = x.shape[-2:]
        if height % self.factor or width % self.factor:
            raise InputError(
                f"Downsample by {self.factor} needs height and width to be multiples, got {height}×{width}"
            )
        return self._matrix(height, x) @ x @ self._matrix(width, x).T

    def _adjoint(self, y: Tensor) -> Tensor:
        image_axes(y, "y", "Downsample")
        height, width = (size * self.factor for size in y.shape[-2:])
        return self._matrix(height, y).T @ y @ self._matrix(width, y)

    def gram_diagonal(self, y: Tensor) -> Tensor | None:
        return torch.full_like(y[:1], self.factor**-2) if self.mode == "mean" else None

    def implied_shape(self, y: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        x = (*y[:-2], *(size * self.factor for size in y[-2:]))
        return x, max(math.prod(x), max(x[-2:]) ** 2)  # the matrix that reduces an axis

    def measured_outputs(self, measured: Tensor) -> Tensor | None:
        return None if self.mode == "bicubic" else self._forward(measured.float()) > 0

    def _matrix(self, size: int, like: Tensor) -> Tensor:
        return reduction(size, self.factor, self.mode, like.dtype, like.device)


@lru_cache(maxsize=64)
def reduction(size: int, factor: int, mode: str, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The matrix `(size // factor, size)` that reduces one axis."""
    eye = torch.eye(size, dtype=torch.float64)
    if mode == "mean":
        matrix = eye.reshape(size // factor, factor, size).mean(1)
    else:
        # the columns are torch's filter applied to unit vectors
        matrix = torch.nn.functional.interpolate(
            eye[None, None], size=(size // factor, size), mode="bicubic", antialias=True, align_corners=False
        )[0, 0]
    return matrix.to(dtype=dtype, device=device)
