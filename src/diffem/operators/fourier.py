r"""Sub-sampled k-space: y = M F (C ⊙ x), the measurement of Cartesian MRI.

F is the orthonormal centred 2-D discrete Fourier transform (zero frequency and image centre both in the middle), M
keeps the measured frequencies, C holds the sensitivity maps of the receive coils if there are any.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.counting import count_of
from ..core.errors import InputError
from .base import Operator, boolean, image_axes, lift, numeric
from .centred import centred_fft2, centred_ifft2
from .hermitian import RealFourier, folded, reflected
from .spectrum import Frequencies, Spectrum


class Fourier(Operator):
    """k-space of an image: y = M F (C ⊙ x), with shape `(n, ..., H, W, 2)`, or `(n, ..., c, H, W, 2)` with coils.

    F is the centred orthonormal transform, `fftshift(fft2(ifftshift(x), norm="ortho"))` over the last two axes of the
    image: the zero frequency is in the middle of y and of the mask.

    Args:
        mask: True where measured; `(W,)`, `(H, W)` or `(1, W)` shared, `(n, H, W)` or `(n, 1, W)` one per
            observation; None measures everything.
        coils: Sensitivity maps, complex `(c, H, W)` or a real view `(c, H, W, 2)`; with one more leading axis, one
            set per observation.
        complex: Whether images are complex, `(n, ..., H, W, 2)`, or real, `(n, ..., H, W)`.
        channels: Whether complex images are two channels, `(n, ..., 2, H, W)`, the layout of convolutional networks.
    """

    complex_output = True

    def __init__(
        self, mask: Tensor | None = None, coils: Tensor | None = None, complex: bool = False, channels: bool = False
    ) -> None:
        super().__init__()
        self.complex, self.channels = bool(complex), bool(channels)
        if channels and not complex:
            raise InputError("Fourier: channels=True needs complex=True")
        if mask is not None:
            mask = boolean(mask, "Fourier")
            self._store("mask", mask.unsqueeze(0) if mask.ndim == 1 else mask, 2)
        if coils is not None:
            coils = numeric(coils, "Fourier: coils")
            if not isinstance(coils, Tensor) or not (coils.is_complex() or coils.shape[-1] == 2):
                raise InputError("Fourier: coils must be complex (c, H, W) or a real view (c, H, W, 2)")
            coils = torch.view_as_real(coils.resolve_conj()) if coils.is_complex() else coils
            self._store("coils", coils, 4)

    def config(self) -> dict[str, Any]:
        return {"complex": self.complex, "channels": self.channels}

    def _mask(self, y: Tensor) -> Tensor | None:
        """The mask as `(1 or n, ..., H or 1, W, 1)` beside y `(n, ..., H, W, 2)`."""
        if "mask" not in self._tensors:
            return None
        mask = self._read("mask")
        height, width = y.shape[-3:-1]
        if mask.shape[-1] not in (1, width) or mask.shape[-2] not in (1, height):
            raise InputError(
                f"Fourier: mask of shape {tuple(self._tensors['mask'].shape)} does not fit images of {height}×{width}; "
                f"masks of columns, one per observation, have the shape (n, 1, {width}), such as mask[:, None]"
            )
        return lift(mask, y[..., 0], 2).unsqueeze(-1)

    def _coils(self, image: Tensor) -> Tensor | None:
        """The maps as complex `(1 or n, ..., c, H, W)` beside images `(n, ..., 1, H, W)`."""
        if "coils" not in self._tensors:
            return None
        coils = torch.view_as_complex(self._read("coils").contiguous())
        if coils.shape[-2:] != image.shape[-2:]:
            raise InputError(
                f"Fourier: coil maps of {coils.shape[-2]}×{coils.shape[-1]} do not fit images of "
                f"{image.shape[-2]}×{image.shape[-1]}"
            )
        return lift(coils, image, 3)

    def _forward(self, x: Tensor) -> Tensor:
        image_axes(x, "x", "Fourier", 3 if self.complex else 2)
        if self.complex and x.shape[-3 if self.channels else -1] != 2:
            form, extra = ("(n, ..., 2, H, W)", ", channels=True") if self.channels else ("(n, ..., H, W, 2)", "")
            raise InputError(f"Fourier(complex=True{extra}) needs images {form}, got {tuple(x.shape)}")
        x = x.movedim(-3, -1) if self.channels else x
        image = torch.view_as_complex(x.contiguous()) if self.complex else x
        if "coils" in self._tensors:
            image = image.unsqueeze(-3)
            coils = self._coils(image)
            assert coils is not None
            image = coils * image
        y = torch.view_as_real(centred_fft2(image))
        mask = self._mask(y)
        return y if mask is None else torch.where(mask, y, 0)

    def _adjoint(self, y: Tensor) -> Tensor:
        with_coils = "coils" in self._tensors
        if y.ndim < (5 if with_coils else 4) or y.shape[-1] != 2:
            form = "(n, ..., c, H, W, 2)" if with_coils else "(n, ..., H, W, 2)"
            raise InputError(f"Fourier measures k-space of shape {form}, got y of shape {tuple(y.shape)}")
        mask = self._mask(y)
        if mask is not None:
            y = torch.where(mask, y, 0)
        image = centred_ifft2(torch.view_as_complex(y.contiguous()))
        coils = self._coils(image)
        if coils is not None:
            if coils.shape[-3] != image.shape[-3]:
                raise InputError(
                    f"Fourier: got {count_of(coils.shape[-3], 'coil map')}, but y has "
                    f"{count_of(image.shape[-3], 'coil')}"
                )
            image = (coils.conj() * image).sum(-3)
        if not self.complex:
            return image.real
        x = torch.view_as_real(image)
        return x.movedim(-1, -3) if self.channels else x

    def measured(self, y: Tensor) -> Tensor | None:
        return self._mask(y)

    def gram_diagonal(self, y: Tensor) -> Tensor | None:
        # AAᵀ is not diagonal for real images, whose spectrum is Hermitian, or with coils
        if not self.complex or "coils" in self._tensors:
            return None
        mask = self._mask(y)
        return torch.ones_like(y[:1]) if mask is None else mask.to(y.dtype)

    def spectrum(self, precision: Tensor) -> Spectrum | None:
        # real and imaginary part of a frequency must have the same precision, and coils mix frequencies
        if "coils" in self._tensors or not torch.equal(precision[..., 0], precision[..., 1]):
            return None
        mask, gains = self._mask(precision), precision[..., 0]
        gains = gains if mask is None else mask[..., 0] * gains
        if not self.complex:  # k and −k of a real image are one number, whose information is the mean of both
            gains = (gains + reflected(gains)) / 2
        return Spectrum(gains, Frequencies(self.complex, self.channels))

    def reduced(self, y: Tensor) -> tuple[Operator, Tensor, Tensor] | None:
        if self.complex or "coils" in self._tensors:
            return None
        height, width = y.shape[-3:-1]
        every = torch.ones(1, height, width, dtype=torch.bool, device=y.device)
        mask = self._read("mask").expand(-1, height, width) if "mask" in self._tensors else every
        values, weights, variance = folded(y, mask)
        shared = "mask" not in self._tensors or self.batch is None
        return RealFourier(weights[0] if shared else weights), values, lift(variance, y, 3)
