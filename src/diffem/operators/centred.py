"""The orthonormal two-dimensional Fourier transform with frequency 0 in the centre, over the last two axes."""

from __future__ import annotations

import torch
from torch import Tensor


def centred_fft2(image: Tensor) -> Tensor:
    axes = (-2, -1)
    return torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(image, axes), norm="ortho"), axes)


def centred_ifft2(kspace: Tensor) -> Tensor:
    axes = (-2, -1)
    return torch.fft.fftshift(torch.fft.ifft2(torch.fft.ifftshift(kspace, axes), norm="ortho"), axes)
