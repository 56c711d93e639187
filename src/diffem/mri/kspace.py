r"""How accelerated MRI measures: random columns of k-space, the centre always, noise on real and imaginary parts.

At acceleration R and width 320 the 2⌈60/R⌉ central columns are always measured and every other one with probability
p = 200/(320R − 120), which measures 320/R columns on average (exactly so where R divides 60); other widths scale the centre.

Masks and noise are addressed: a mask is a function of (seed, slice), the noise of a column of (seed, slice, column). So a column's
measured values do not depend on which others are measured, and the masks of a slice at different R are nested.
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
    """How many central columns are always measured."""
    return min(width, 2 * math.ceil(60 / accel * width / 320))


def column_probability(accel: float) -> float:
    """The probability p of each of the other columns."""
    return 200 / (320 * accel - 120)


def central(width: int, accel: float) -> Tensor:
    """`(width,)`, True in the columns that are always measured."""
    column = torch.arange(width)
    # the zero frequency lies at width // 2; the columns number as many below as from there on
    distance = torch.where(column < width // 2, width // 2 - column, column - width // 2 + 1)
    return distance <= centre_columns(width, accel) // 2


def column_masks(index: Tensor, width: int, accel: float, seed: int) -> Tensor:
    """`(n, width)`, True where measured, for the slices at addresses `index` `(n,)`."""
    if not accel >= 1:
        raise InputError(f"data.accel must be at least 1 (1 measures everything), got {accel}")
    chosen = Stream(seed, "mri mask").uniform(index, (width,)) < column_probability(accel)
    return central(width, accel) | chosen


def take_columns(y: Tensor, masks: Tensor) -> Tensor:
    """The measured columns of y `(n, ..., H, W, 2)`, one after another, `(columns, ..., H, 2)`. masks: `(n, W)`."""
    return y.movedim(-2, 1)[masks]


def put_columns(values: Tensor, masks: Tensor) -> Tensor:
    """The inverse: columns in their places, 0 where nothing was measured."""
    y = values.new_zeros(*masks.shape, *values.shape[1:])
    y[masks] = values
    return y.movedim(1, -2)


def column_noise(index: Tensor, masks: Tensor, shape: tuple[int, ...], seed: int) -> Tensor:
    """Standard normal noise of the measured columns, `(columns, *shape)`; index: `(n,)`, masks: `(n, W)`."""
    slices, columns = masks.nonzero(as_tuple=True)
    return Stream(seed, "mri noise").normal(index[slices], shape, draw=columns)


def operator(masks: Tensor, coils: Tensor | None, complex: bool) -> Fourier:
    """k-space columns of images `(n, 1, H, W)`, or `(n, 2, H, W)` when complex. masks: `(n, W)`, coils: `(n, c, H, W, 2)`."""
    return Fourier(masks.unsqueeze(1), coils, complex=complex, channels=complex)


@dataclass(frozen=True)
class Protocol:
    """A simulated measurement: acceleration R, noise level, address of its random numbers."""

    accel: float
    sigma: float
    seed: int

    def __post_init__(self) -> None:
        if not (isinstance(self.accel, int | float) and math.isfinite(self.accel) and self.accel >= 1):
            raise InputError(f"data.accel must be a number of at least 1 (1 measures everything), got {self.accel!r}")
        if not (isinstance(self.sigma, int | float) and math.isfinite(self.sigma) and self.sigma > 0):
            raise InputError(f"data.sigma must be a positive number, got {self.sigma!r}")

    def measure(self, x: Tensor, index: Tensor, coils: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Measured columns and masks `(n, W)` of images x `(n, 1 or 2, H, W)` at addresses `index` `(n,)`."""
        masks = column_masks(index, x.shape[-1], self.accel, self.seed)
        clean = take_columns(operator(masks, coils, x.shape[1] == 2)(x), masks)
        return clean + self.sigma * column_noise(index, masks, tuple(clean.shape[1:]), self.seed), masks
