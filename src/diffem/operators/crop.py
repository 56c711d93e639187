"""Observations of a window of the image: small detectors, limited fields of view."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..core.errors import InputError
from .base import Operator, image_axes
from .spectrum import Spectrum


class Crop(Operator):
    """y = the window of `size` whose upper left corner is (top, left).

    Args:
        size: (height, width) of the window.
        image: (height, width) of the images.
        top: Row of the window: an int for all images, or an integer tensor `(n,)`. Default: centred.
        left: Column of the window, likewise.
    """

    def __init__(
        self,
        size: tuple[int, int],
        image: tuple[int, int],
        top: int | Tensor | None = None,
        left: int | Tensor | None = None,
    ) -> None:
        super().__init__()
        for name, pair in (("size", size), ("image", image)):
            if isinstance(pair, int | float) or len(pair) != 2 or any(int(number) != number for number in pair):
                raise InputError(f"Crop: {name} is (height, width), such as (8, 8), got {pair!r}")
        self.size, self.image = (int(size[0]), int(size[1])), (int(image[0]), int(image[1]))
        for name, offset, inner, outer in zip(("top", "left"), (top, left), self.size, self.image, strict=True):
            if not 0 < inner <= outer:
                raise InputError(f"Crop: a window of {self.size} does not fit images of {self.image}")
            offset = torch.as_tensor((outer - inner) // 2 if offset is None else offset)
            if (
                offset.is_floating_point()
                or offset.is_complex()
                or not ((offset >= 0) & (offset <= outer - inner)).all()
            ):
                raise InputError(f"Crop: {name} must be an integer in [0, {outer - inner}], got {offset.tolist()}")
            self._store(name, offset.long(), 0)

    def config(self) -> dict[str, Any]:
        return {"size": list(self.size), "image": list(self.image)}

    def _window(self, data: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Index tensors of the window for data laid out as `(n, H, W, ...)`."""
        device = data.device
        rows = self._read("top")[:, None, None] + torch.arange(self.size[0], device=device)[:, None]
        columns = self._read("left")[:, None, None] + torch.arange(self.size[1], device=device)
        sample = torch.arange(len(data), device=device)[:, None, None]
        return sample, rows, columns

    def _forward(self, x: Tensor) -> Tensor:
        image_axes(x, "x", "Crop")
        if tuple(x.shape[-2:]) != self.image:
            raise InputError(f"Crop is set up for images of {self.image}, got {tuple(x.shape[-2:])}")
        first = x.movedim((-2, -1), (1, 2))
        return first[self._window(x)].movedim((1, 2), (-2, -1))

    def _adjoint(self, y: Tensor) -> Tensor:
        image_axes(y, "y", "Crop")
        if tuple(y.shape[-2:]) != self.size:
            raise InputError(f"Crop measures windows of {self.size}, got {tuple(y.shape[-2:])}")
        first = y.movedim((-2, -1), (1, 2))
        image = y.new_zeros(len(y), *self.image, *first.shape[3:])
        return image.index_put(self._window(y), first).movedim((1, 2), (-2, -1))

    def gram_diagonal(self, y: Tensor) -> Tensor:
        return torch.ones_like(y[:1])

    def spectrum(self, precision: Tensor) -> Spectrum:
        # a window that differs between observations spreads one precision to each of them
        rows = precision if self.batch is None else precision.expand(self.batch, *precision.shape[1:])
        return Spectrum(self._adjoint(rows))

    def implied_shape(self, y: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        x = (*y[:-2], *self.image)
        return x, math.prod(x)

    def measured_outputs(self, measured: Tensor) -> Tensor:
        return self._forward(measured.float()) > 0
