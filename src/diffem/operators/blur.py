"""Convolution with a known kernel: optics, motion, the atmosphere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .base import Operator, image_axes, lift, numeric
from .spectrum import Frequencies, Spectrum

BOUNDARIES = ("circular", "reflect", "zero")


class Blur(Operator):
    """y = kernel * x, the size of x.

    x: `(n, ..., H, W)`; signals are images with one row, `(n, 1, length)`. The image is padded according to `boundary`
    and convolved by FFT, so the cost does not depend on the size of the kernel.

    Args:
        kernel: (h, w) for all observations, or (n, h, w) one per observation, of any size up to the image's; its origin
            is entry `(h // 2, w // 2)`.
        boundary: The values outside the image: 'circular' (periodic), 'reflect' (mirrored without repeating the
            border), or 'zero'.
    """

    def __init__(self, kernel: Tensor, boundary: str = "circular") -> None:
        super().__init__()
        if boundary not in BOUNDARIES:
            raise InputError(f"Blur: boundary must be one of {', '.join(BOUNDARIES)}, got {boundary!r}")
        kernel = numeric(kernel, "Blur: kernel")
        if not isinstance(kernel, Tensor) or not kernel.is_floating_point():
            given = getattr(kernel, "dtype", type(kernel).__name__)
            raise InputError(
                f"Blur: kernel must be a tensor or array of floating-point numbers, (h, w) or (n, h, w), got {given}"
            )
        if kernel.ndim == 1:
            raise InputError(
                f"Blur: kernel must have 2 axes, got shape {tuple(kernel.shape)}. A signal is an image with one row: "
                f"pass a kernel of shape {(1, *kernel.shape)} and y of shape (n, 1, length)"
            )
        if kernel.numel() == 0:
            raise InputError(f"Blur: kernel must have at least one entry, got shape {tuple(kernel.shape)}")
        self.boundary = boundary
        self._store("kernel", kernel, 2)

    def config(self) -> dict[str, Any]:
        return {"boundary": self.boundary}

    def _forward(self, x: Tensor) -> Tensor:
        image_axes(x, "x", "Blur")
        padded = x
        for axis in (-2, -1):
            padded = self._pad(padded, axis, x.shape[axis])
        full = self._convolve(padded, conjugate=False)
        (top, _), (left, _) = self._margins(-2), self._margins(-1)
        if self.boundary == "circular":
            return full
        return full[..., top : top + x.shape[-2], left : left + x.shape[-1]]

    def _adjoint(self, y: Tensor) -> Tensor:
        image_axes(y, "y", "Blur")
        full = y
        if self.boundary != "circular":
            (top, bottom), (left, right) = self._margins(-2), self._margins(-1)
            full = torch.nn.functional.pad(y, (left, right, top, bottom))
        full = self._convolve(full, conjugate=True)
        for axis in (-1, -2):
            full = self._unpad(full, axis, y.shape[axis])
        return full

    def spectrum(self, precision: Tensor) -> Spectrum | None:
        """Circular convolution is a product in Fourier space, if all pixels of an observation have the same noise."""
        level = precision.flatten(1)
        if self.boundary != "circular" or not torch.equal(level, level[:, :1].expand_as(level)):
            return None
        power = torch.fft.fftshift(torch.fft.fft2(self._centred(*precision.shape[-2:])).abs().square(), (-2, -1))
        return Spectrum(lift(power, precision, 2) * precision, Frequencies())

    def _margins(self, axis: int) -> tuple[int, int]:
        """Number of entries by which the kernel reaches beyond the image along an axis, before and after."""
        size = self._tensors["kernel"].shape[axis]
        return size - 1 - size // 2, size // 2

    def _outside(self, axis: int, size: int) -> Tensor:
        """For each position of the padded axis, the image position it repeats."""
        before, after = self._margins(axis)
        position = torch.arange(-before, size + after)
        if max(before, after) >= size:
            raise InputError(
                f"Blur: a kernel of {before + after + 1} entries is too large for an axis of {size} (reflect)"
            )
        return (size - 1 - (position.abs() - (size - 1)).abs()).to(self._tensors["kernel"].device)

    def _pad(self, x: Tensor, axis: int, size: int) -> Tensor:
        before, after = self._margins(axis)
        if self.boundary == "circular":
            return x
        if self.boundary == "zero":
            return torch.nn.functional.pad(x, (0, 0, before, after) if axis == -2 else (before, after))
        return x.index_select(axis, self._outside(axis, size))

    def _unpad(self, padded: Tensor, axis: int, size: int) -> Tensor:
        """The adjoint of `_pad`: padded values are added to the pixels they were copied from."""
        if self.boundary == "circular":
            return padded
        before, _ = self._margins(axis)
        if self.boundary == "zero":
            return padded.narrow(axis, before, size)
        shape = list(padded.shape)
        shape[axis] = size
        return padded.new_zeros(shape).index_add(axis, self._outside(axis, size), padded)

    def _convolve(self, x: Tensor, conjugate: bool) -> Tensor:
        """Circular convolution of the (padded) image with the kernel, or its adjoint, correlation."""
        height, width = x.shape[-2:]
        transfer = lift(torch.fft.rfft2(self._centred(height, width)), x, 2)
        spectrum = torch.fft.rfft2(x) * (transfer.conj() if conjugate else transfer)
        return torch.fft.irfft2(spectrum, s=(height, width))

    def _centred(self, height: int, width: int) -> Tensor:
        """The kernel on a grid of the image's size, its origin at (0, 0): `(1 or n, height, width)`."""
        kernel = self._read("kernel")
        if kernel.shape[-2] > height or kernel.shape[-1] > width:
            raise InputError(
                f"Blur: a kernel of {kernel.shape[-2]}×{kernel.shape[-1]} is larger than the image of {height}×{width}"
            )
        centred = torch.nn.functional.pad(kernel, (0, width - kernel.shape[-1], 0, height - kernel.shape[-2]))
        return centred.roll((-(kernel.shape[-2] // 2), -(kernel.shape[-1] // 2)), (-2, -1))
