r"""k-space of a real image without redundant frequencies.

The spectrum of a real image is Hermitian, z(−k) = z(k)*. A scan that contains both frequencies of a pair measures one
number twice, and AAᵀ is not diagonal. The average of the two has the same information as both, since their difference
is pure noise. One frequency of each pair, with real and imaginary part multiplied by √2, gives orthonormal coordinates
of the image. Conjugate gradients profit most: they would spend their first iterations on the differences, which carry
no signal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .base import Operator, lift
from .centred import centred_fft2, centred_ifft2


class RealFourier(Operator):
    """Coordinates of the spectrum of real images `(n, ..., H, W)`, as `(n, ..., H, W, 2)`.

    Args:
        weights: (H, W, 2) for all observations, or (n, H, W, 2): √2 on the parts of one frequency of each pair, 1 on
            the real part of a frequency that is its own partner, 0 on unmeasured and redundant parts.
    """

    def __init__(self, weights: Tensor) -> None:
        super().__init__()
        self._store("weights", weights, 3)

    def _weights(self, y: Tensor) -> Tensor:
        return lift(self._read("weights"), y, 3)

    def _forward(self, x: Tensor) -> Tensor:
        y = torch.view_as_real(centred_fft2(x))
        return self._weights(y) * y

    def _adjoint(self, y: Tensor) -> Tensor:
        weights = self._weights(y)
        kspace = torch.where(weights > 0, weights * y, 0)
        return centred_ifft2(torch.view_as_complex(kspace)).real

    def measured(self, y: Tensor) -> Tensor:
        return self._weights(y) > 0

    def gram_diagonal(self, y: Tensor) -> Tensor:
        return self.measured(y).to(y.dtype)


def reflected(kspace: Tensor) -> Tensor:
    """The values at −k; k-space is centred, `(..., H, W)`."""
    even = [axis for axis in (-2, -1) if kspace.shape[axis] % 2 == 0]
    return kspace.flip((-2, -1)).roll([1] * len(even), even) if even else kspace.flip((-2, -1))


def folded(y: Tensor, mask: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Reduce the k-space of a real image to the coordinates of `RealFourier`.

    Returns the coordinates, the weights of `RealFourier`, and the variances of the coordinates in units of y's
    variance.

    Args:
        y: (n, ..., H, W, 2).
        mask: (1 or n, H, W). True where measured.
    """
    height, width = y.shape[-3:-1]
    mask = mask.expand(-1, height, width)
    place = torch.arange(height * width, device=y.device).reshape(height, width)
    own = (place == reflected(place)).to(y.dtype)  # 1 where k is its own partner
    count = mask.to(y.dtype) + reflected(mask).to(y.dtype)  # (1 or n, H, W), of measurements of the pair
    kept = (count > 0) & (place <= reflected(place))
    root = math.sqrt(2) * (1 - own)
    weights = torch.stack([own + root, root], -1) * kept.unsqueeze(-1)
    measured = lift(mask, y[..., 0], 2)
    kspace = torch.where(measured, torch.view_as_complex(y.contiguous()), 0)
    average = (kspace + reflected(kspace).conj()) / lift(count.clamp(min=1), y[..., 0], 2)
    variance = (own + (1 - own) * 2 / count.clamp(min=1)).unsqueeze(-1).expand(*count.shape, 2)
    return lift(weights, y, 3) * torch.view_as_real(average.resolve_conj()), weights, variance
