r"""Real orthonormal coordinates c = Bx in which the information of an observation is diagonal (`spectrum.py`).

In the basis of entries they are the entries, and for complex images the real and imaginary parts of the orthonormal
Fourier transform Fx. For real images they are the Hartley transform

    Bx = Re Fx − Im Fx,

which is real, orthonormal and its own inverse, and has one number for each frequency. A product g ⊙ Fx with gains g(k)
= g(−k) is g ⊙ Bx in these coordinates.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .spectrum import Entries, Frequencies, Spectrum

Basis = Entries | Frequencies


def to_coordinates(basis: Basis, x: Tensor) -> Tensor:
    """Bx for samples x `(n, *event)`: `(n, N)`, real."""
    if isinstance(basis, Entries):
        return x.flatten(1)
    spectrum = basis.coordinates(x)
    return (torch.view_as_real(spectrum) if basis.complex else spectrum.real - spectrum.imag).flatten(1)


def from_coordinates(basis: Basis, c: Tensor, event_shape: tuple[int, ...]) -> Tensor:
    """Bᵀc for coordinates c `(n, N)`: `(n, *event)`."""
    if isinstance(basis, Entries):
        return c.reshape(len(c), *event_shape)
    if not basis.complex:
        return to_coordinates(basis, c.reshape(len(c), *event_shape)).reshape(len(c), *event_shape)
    shape = event_shape[:-1] if not basis.channels else (*event_shape[:-3], *event_shape[-2:])
    return basis.sample(torch.view_as_complex(c.reshape(len(c), *shape, 2).contiguous()))


def coordinate_gains(spectrum: Spectrum, event_shape: tuple[int, ...]) -> Tensor:
    """The diagonal g of the information in these coordinates, `(1 or n, N)`."""
    gains, basis = spectrum.gains, spectrum.basis
    if isinstance(basis, Entries) or not basis.complex:
        return gains.expand(-1, *event_shape).flatten(1)
    shape = event_shape[:-1] if not basis.channels else (*event_shape[:-3], *event_shape[-2:])
    return gains.expand(-1, *shape).unsqueeze(-1).expand(-1, *shape, 2).flatten(1)
