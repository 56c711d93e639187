"""Observations of some entries of x: inpainting, dead pixels, missing values."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.errors import InputError
from .base import Operator, boolean
from .spectrum import Spectrum


class Mask(Operator):
    """y = x on the measured entries, 0 elsewhere.

    Args:
        mask: True where measured, `(*event)` shared or `(n, *event)` one per observation; axes of size 1 broadcast
            (`(n, 1, 32, 32)` deletes all channels of a pixel together).
    """

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self._store("mask", boolean(mask, "Mask"), None)

    def _mask(self, data: Tensor) -> Tensor:
        mask = self._read("mask", data.ndim - 1)
        if any(m not in (1, d) for m, d in zip(mask.shape, data.shape, strict=True)):
            raise InputError(
                f"Mask of shape {tuple(self._tensors['mask'].shape)} does not fit data of shape {tuple(data.shape)}; "
                "give (*event) or (n, *event)"
            )
        return mask

    def _forward(self, x: Tensor) -> Tensor:
        return torch.where(self._mask(x), x, 0)

    def _adjoint(self, y: Tensor) -> Tensor:
        return torch.where(self._mask(y), y, 0)

    def measured(self, y: Tensor) -> Tensor:
        return self._mask(y)

    def gram_diagonal(self, y: Tensor) -> Tensor:
        return self._mask(y).to(y.dtype)

    def spectrum(self, precision: Tensor) -> Spectrum:
        return Spectrum(self._mask(precision) * precision)

    def measured_outputs(self, measured: Tensor) -> Tensor:
        return self._mask(measured) & measured

    def resolve_axes(self, x: Tensor) -> Mask:
        return self._bind(mask=x.ndim - 1)
