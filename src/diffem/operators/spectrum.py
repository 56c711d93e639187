r"""What an observation says about x, where it is diagonal in a known basis.

The likelihood of y = A x + e depends on x through G = AᵀΣ_y⁻¹A, the *information*. For pixel masks, windows and whole images G is
diagonal in the entries of x; for Cartesian k-space of one coil and circular blurs it is diagonal in Fourier space:

    G = Bᵀ diag(g) B,      B orthonormal.

Functions of G, such as (I + σ²G)⁻¹, then cost two changes of basis and no solver.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Entries:
    """The basis of x itself."""

    def coordinates(self, x: Tensor) -> Tensor:
        return x

    def sample(self, coordinates: Tensor) -> Tensor:
        return coordinates


@dataclass(frozen=True)
class Frequencies:
    """The orthonormal centred 2-D Fourier transform over the last two axes of an image.

    complex, channels: how samples hold complex images, as in `Fourier`.
    """

    complex: bool = False
    channels: bool = False

    def coordinates(self, x: Tensor) -> Tensor:
        """Images `(n, ..., H, W)`, `(n, ..., H, W, 2)` or `(n, ..., 2, H, W)` → complex spectra `(n, ..., H, W)`."""
        from .fourier import centred_fft2

        x = x.movedim(-3, -1) if self.channels else x
        return centred_fft2(torch.view_as_complex(x.contiguous()) if self.complex else x)

    def sample(self, coordinates: Tensor) -> Tensor:
        from .fourier import centred_ifft2

        image = centred_ifft2(coordinates)
        if not self.complex:
            return image.real
        x = torch.view_as_real(image)
        return x.movedim(-1, -3) if self.channels else x


@dataclass(frozen=True)
class Spectrum:
    """G = Bᵀ diag(gains) B; gains: `(1 or n, ...)`, real, non-negative, broadcastable to coordinates in the basis."""

    gains: Tensor
    basis: Entries | Frequencies = Entries()

    def apply(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        """Bᵀ diag(function(gains)) B x, `(n, *event)`."""
        return self.basis.sample(function(self.gains) * self.basis.coordinates(x))

    def isotropic(self) -> Tensor | None:
        """γ `(1 or n,)` when G = γI for every observation, to rounding; None otherwise."""
        gains = self.gains.flatten(1)
        low, high = gains.amin(1), gains.amax(1)
        slack = 16 * torch.finfo(gains.dtype).eps
        return gains.mean(1) if bool((high - low <= slack * high).all()) else None
