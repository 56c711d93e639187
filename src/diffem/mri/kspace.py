r"""Simulated accelerated MRI: random columns of k-space, always with the central ones, and noise.

At acceleration R and width 320, the 2⌈60/R⌉ central columns are always measured, and every other column with
probability p = 200/(320R − 120). That gives 320/R columns on average (exactly if R divides 60). For other widths the
number of central columns scales with the width.

Random numbers are addressed: a mask depends on (seed, slice), the noise of a column on (seed, slice, column). The
measured values of a column therefore do not depend on which other columns are measured, and the masks of a slice at
different R are nested.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.errors import InputError
from ..core.randomness import Stream
from ..operators import Fourier


def centre_columns(width: int, accel: float) -> int:
    """Number of central columns, which are always measured."""
    return min(width, 2 * math.ceil(60 / accel * width / 320))


def column_probability(accel: float) -> float:
    """Probability p that one of the other columns is measured."""
    return 200 / (320 * accel - 120)


def central(width: int, accel: float) -> Tensor:
    """`(width,)`. True in the central columns."""
    column = torch.arange(width)
    # the zero frequency is at width // 2; half of the central columns lie below it, the others start at it
    distance = torch.where(column < width // 2, width // 2 - column, column - width // 2 + 1)
    return distance <= centre_columns(width, accel) // 2


def column_masks(index: Tensor, width: int, accel: float, seed: int) -> Tensor:
    """Column masks of the slices at addresses `index` `(n,)`: `(n, width)`, True in measured columns."""
    chosen = Stream(seed, "mri mask").uniform(index, (width,)) < column_probability(accel)
    return central(width, accel) | chosen


def take_columns(y: Tensor, masks: Tensor) -> Tensor:
    """Select the measured columns of all slices.

    Args:
        y: `(n, ..., H, W, 2)`.
        masks: `(n, W)`.

    Returns:
        The columns of the first slice, then those of the second and so on, `(columns, ..., H, 2)`.
    """
    return y.movedim(-2, 1)[masks]


def put_columns(values: Tensor, masks: Tensor) -> Tensor:
    """The inverse of `take_columns`, with 0 in unmeasured columns."""
    y = values.new_zeros(*masks.shape, *values.shape[1:])
    y[masks] = values
    return y.movedim(1, -2)


def column_noise(index: Tensor, masks: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal noise of the measured columns.

    Args:
        index: `(n,)`. Addresses of the slices.
        masks: `(n, W)`.
        shape: Shape of one column.

    Returns:
        `(columns, *shape)`, in the order of `take_columns`.
    """
    slices, columns = masks.nonzero(as_tuple=True)
    return Stream(seed, "mri noise").normal(index[slices], shape, draw=columns)


def centre_crop(x: Tensor, height: int, width: int) -> Tensor:
    """The central window of x `(..., H, W)`."""
    top, left = (x.shape[-2] - height) // 2, (x.shape[-1] - width) // 2
    return x[..., top : top + height, left : left + width]


def operator(masks: Tensor, coils: Tensor | None, complex: bool) -> Fourier:
    """The operator that measures columns of k-space.

    Args:
        masks: `(n, W)`.
        coils: `(n, c, H, W, 2)`. Coil maps, or None for a single coil.
        complex: Whether images are complex, `(n, 2, H, W)`, or magnitudes, `(n, 1, H, W)`.
    """
    return Fourier(masks.unsqueeze(1), coils, complex=complex, channels=complex)


@dataclass(frozen=True)
class Acquisition:
    """A simulated measurement of k-space.

    Attributes:
        accel: Acceleration R.
        sigma: Noise level of real and imaginary parts.
        seed: Seed of masks and noise.
    """

    accel: float
    sigma: float
    seed: int

    def __post_init__(self) -> None:
        if not (isinstance(self.accel, int | float) and math.isfinite(self.accel) and self.accel >= 1):
            raise InputError(f"data.accel must be a number of at least 1 (1 measures everything), got {self.accel!r}")
        if not (isinstance(self.sigma, int | float) and math.isfinite(self.sigma) and self.sigma > 0):
            raise InputError(f"data.sigma must be a positive number, got {self.sigma!r}")

    def measure(self, x: Tensor, index: Tensor, coils: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Measure images.

        Args:
            x: `(n, 1 or 2, H, W)`. Magnitude or complex images.
            index: `(n,)`. Their addresses.
            coils: `(n, c, H, W, 2)`. Coil maps, or None for a single coil.

        Returns:
            The measured columns, as `take_columns` returns them, and the masks, `(n, W)`.
        """
        masks = column_masks(index, x.shape[-1], self.accel, self.seed)
        clean = take_columns(operator(masks, coils, x.shape[1] == 2)(x), masks)
        return clean + self.sigma * column_noise(index, masks, tuple(clean.shape[1:]), self.seed), masks
