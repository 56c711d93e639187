r"""The information of an observation about x, G = AᵀΣ_y⁻¹A, diagonal in an orthonormal basis.

The likelihood of y = A x + e depends on x through G alone. For pixel masks, windows and whole images G is diagonal in
the entries of x; for Cartesian k-space of one coil and circular blurs it is diagonal in Fourier space; for small
problems its eigenvectors can be computed:

    G = Bᵀ diag(g) B,      B with orthonormal rows, G = 0 on their complement.

Functions of G, such as (I + σ²G)⁻¹, then cost two changes of basis and no solver. If no basis is known,
`observations/krylov.py` computes them from products with G.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, Self

import torch
from torch import Tensor

from ..core.shapes import per_sample
from .centred import centred_fft2, centred_ifft2

# elementwise function of eigenvalues (1 or n, ...); per-sample values are broadcast by `per_sample`
Function = Callable[[Tensor], Tensor]


class Information(Protocol):
    """G of n observations, or one G for all of them."""

    @property
    def kind(self) -> str:
        """Name of the representation of G: a basis, or products with an operator."""
        ...

    def combine(self, *terms: tuple[Function, Tensor]) -> Tensor:
        """Σ f(G) x over the terms (f, x `(n, *event)`)."""
        ...

    def scaled(self, scale: float) -> Self:
        """G in units of `scale`, that is multiplied by scale²."""
        ...

    def isotropic(self) -> Tensor | None:
        """γ `(1 or n,)` when G = γI for every observation, to rounding; None otherwise."""
        ...

    def extent(self) -> tuple[Tensor, Tensor]:
        """The share of x that each observation determines at scale 1, and its smallest noise.

        Observations without measured values are left out.
        """
        ...


class DiagonalInformation(Information, Protocol):
    """G with its eigenvalues g `(1 or n, ...)`, real and non-negative, in a basis B."""

    @property
    def gains(self) -> Tensor: ...

    def coordinates(self, x: Tensor) -> Tensor:
        """B x, for x `(n, *event)`; broadcastable with `gains`."""
        ...

    def restore(self, coordinates: Tensor, shape: torch.Size) -> Tensor:
        """Bᵀ c as samples of `shape` `(n, *event)`."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """The tensors that hold one entry per observation, or one for all."""
        ...

    def with_tensors(self, tensors: dict[str, Tensor]) -> Self:
        """The same kind of information with other tensors."""
        ...


def rounded(information: DiagonalInformation, dtype: torch.dtype) -> DiagonalInformation:
    """The same information with its tensors in `dtype`."""
    return information.with_tensors({name: tensor.to(dtype) for name, tensor in information.tensors().items()})


@dataclass(frozen=True)
class Entries:
    """The basis of x itself."""

    kind = "entries"

    def coordinates(self, x: Tensor) -> Tensor:
        return x

    def sample(self, coordinates: Tensor) -> Tensor:
        return coordinates


@dataclass(frozen=True)
class Frequencies:
    """The orthonormal centred 2-D Fourier transform over the last two axes of an image.

    Attributes:
        complex, channels: The layout of complex images in samples, as in `Fourier`.
    """

    complex: bool = False
    channels: bool = False

    kind = "frequencies"

    def coordinates(self, x: Tensor) -> Tensor:
        """Images `(n, ..., H, W)`, `(n, ..., H, W, 2)` or `(n, ..., 2, H, W)` → complex spectra `(n, ..., H, W)`."""
        x = x.movedim(-3, -1) if self.channels else x
        return centred_fft2(torch.view_as_complex(x.contiguous()) if self.complex else x)

    def sample(self, coordinates: Tensor) -> Tensor:
        image = centred_ifft2(coordinates)
        if not self.complex:
            return image.real
        x = torch.view_as_real(image)
        return x.movedim(-1, -3) if self.channels else x


@dataclass(frozen=True)
class Spectrum:
    """G = Bᵀ diag(gains) B in a fixed basis; gains: `(1 or n, ...)`, broadcastable to coordinates in the basis."""

    gains: Tensor
    basis: Entries | Frequencies = Entries()

    @property
    def kind(self) -> str:
        return self.basis.kind

    def coordinates(self, x: Tensor) -> Tensor:
        return self.basis.coordinates(x)

    def restore(self, coordinates: Tensor, shape: torch.Size) -> Tensor:
        return self.basis.sample(coordinates).expand(shape)

    def combine(self, *terms: tuple[Function, Tensor]) -> Tensor:
        coordinates = [function(self.gains) * self.basis.coordinates(x) for function, x in terms]
        return self.basis.sample(functools.reduce(torch.add, coordinates))

    def scaled(self, scale: float) -> Spectrum:
        return replace(self, gains=self.gains * scale**2)

    def isotropic(self) -> Tensor | None:
        gains = self.gains.flatten(1)
        low, high = gains.amin(1), gains.amax(1)
        slack = 16 * torch.finfo(gains.dtype).eps
        return gains.mean(1) if bool((high - low <= slack * high).all()) else None

    def extent(self) -> tuple[Tensor, Tensor]:
        return _extent(self.gains, self.gains[0].numel())

    def tensors(self) -> dict[str, Tensor]:
        return {"gains": self.gains}

    def with_tensors(self, tensors: dict[str, Tensor]) -> Spectrum:
        return replace(self, gains=tensors["gains"])


@dataclass(frozen=True)
class RowInformation:
    """G = Bᵀ diag(gains) B with different rows B for every observation, and 0 on their complement.

    Attributes:
        gains: `(1 or n, r)`.
        rows: B `(1 or n, r, N)`, orthonormal, over the flattened sample; a row whose gain is 0 may be 0.
    """

    gains: Tensor
    rows: Tensor

    kind = "rows"

    def coordinates(self, x: Tensor) -> Tensor:
        return (self.rows @ x.flatten(1).unsqueeze(-1)).squeeze(-1)

    def restore(self, coordinates: Tensor, shape: torch.Size) -> Tensor:
        return (self.rows.mT @ coordinates.unsqueeze(-1)).squeeze(-1).reshape(shape)

    def combine(self, *terms: tuple[Function, Tensor]) -> Tensor:
        nothing, shape = torch.zeros_like(self.gains[:, :1]), terms[0][1].shape
        outside = [(function(nothing), x.flatten(1)) for function, x in terms]  # f(0) on the complement of the rows
        inside = [
            (function(self.gains) - value) * self.coordinates(flat)
            for (function, _), (value, flat) in zip(terms, outside, strict=True)
        ]
        rest = functools.reduce(torch.add, (value * flat for value, flat in outside))
        return rest.reshape(shape) + self.restore(functools.reduce(torch.add, inside), shape)

    def scaled(self, scale: float) -> RowInformation:
        return replace(self, gains=self.gains * scale**2)

    def isotropic(self) -> Tensor | None:
        return None

    def extent(self) -> tuple[Tensor, Tensor]:
        return _extent(self.gains, self.rows.shape[-1])

    def tensors(self) -> dict[str, Tensor]:
        return {"gains": self.gains, "rows": self.rows}

    def with_tensors(self, tensors: dict[str, Tensor]) -> RowInformation:
        return RowInformation(**tensors)


def _extent(gains: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Compute `Information.extent` from gains `(n, ...)`; size: the number of entries of a sample."""
    gains = gains.flatten(1).double().cpu()
    gains = gains[gains.amax(1) > 0]
    return shrinkage(gains).sum(1) / size, gains.amax(1).rsqrt()


def shrinkage(gains: Tensor) -> Tensor:
    """g/(1 + g): the share of a coordinate that y determines, for gains in units of the prior's precision."""
    return gains / (1 + gains)


def determined_share(level: Tensor | float) -> Function:
    """Make the function g → 1 − k = σ²g/(1 + σ²g), the share of each coordinate that y determines at noise level σ.

    k are the eigenvalues of K = (I + σ²G)⁻¹, the part of the noise of x_t that remains once y is known.
    """
    return lambda gains: shrinkage(per_sample(level, gains) ** 2 * gains)
