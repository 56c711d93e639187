"""Augmentations of training images `(n, channels, height, width)`, as functions of the image and of uniform numbers."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from ..core import vector_math  # noqa: F401  # initialises it
from ..core.errors import InputError

Augmentation = Callable[[Tensor, Tensor], Tensor]

SHIFT = 4  # largest shift of `crop`, in pixels
TURN = 0.01  # largest rotation of `hue`, as a fraction of a full turn


def hflip(x: Tensor, u: Tensor) -> Tensor:
    """Flip images left to right with probability ½. u: `(n, 1)`."""
    return torch.where(u[:, :1, None, None] < 0.5, x.flip(-1), x)


def crop(x: Tensor, u: Tensor) -> Tensor:
    """Shift images by up to `SHIFT` pixels in each direction, with the border repeated. u: `(n, 2)`."""
    return _shifted(x, _shift(u))


def uncrop(x: Tensor, u: Tensor) -> Tensor:
    """Undo the shift of `crop`. Pixels that were shifted out are lost; the border replaces them."""
    return _shifted(x, -_shift(u))


def _shift(u: Tensor) -> Tensor:
    return (u * (2 * SHIFT + 1)).long() - SHIFT


def _shifted(x: Tensor, shift: Tensor) -> Tensor:
    """Shift images; shift: `(n, 2)`, rows and columns."""
    height, width = x.shape[-2:]
    rows = (torch.arange(height, device=x.device) + shift[:, :1]).clamp(0, height - 1)
    columns = (torch.arange(width, device=x.device) + shift[:, 1:]).clamp(0, width - 1)
    x = x.gather(-2, rows[:, None, :, None].expand(-1, x.shape[1], -1, width))
    return x.gather(-1, columns[:, None, None, :].expand(-1, x.shape[1], height, -1))


def hue(x: Tensor, u: Tensor) -> Tensor:
    """Rotate colours about the grey axis by up to `TURN` of a full turn in each direction. u: `(n, 1)`."""
    angle = (u[:, 0] * 2 - 1) * (2 * math.pi * TURN)
    axis = 1 / math.sqrt(3)
    cos, sin = angle.cos(), angle.sin()
    # Rodrigues' formula about (1, 1, 1)/√3
    diagonal = cos + (1 - cos) / 3
    ahead, back = (1 - cos) / 3 - sin * axis, (1 - cos) / 3 + sin * axis
    rows = [
        torch.stack([diagonal, ahead, back], -1),
        torch.stack([back, diagonal, ahead], -1),
        torch.stack([ahead, back, diagonal], -1),
    ]
    return torch.einsum("nij,njhw->nihw", torch.stack(rows, 1).to(x.dtype), x)


def unhue(x: Tensor, u: Tensor) -> Tensor:
    """Undo `hue`."""
    return hue(x, 1 - u)


# name → (uniform numbers per image, function, its inverse)
AUGMENTATIONS: dict[str, tuple[int, Augmentation, Augmentation]] = {
    "hflip": (1, hflip, hflip),
    "crop": (2, crop, uncrop),
    "hue": (1, hue, unhue),
}


class Augment:
    """A sequence of augmentations.

    Args:
        names: Their names, in order.
        event_shape: The shape of a sample.
    """

    def __init__(self, names: list[str], event_shape: tuple[int, ...]) -> None:
        for name in names:
            if name not in AUGMENTATIONS:
                raise InputError(f"unknown augmentation {name!r}; known: {', '.join(AUGMENTATIONS)}")
        if names and len(event_shape) != 3:
            raise InputError(
                f"augmentations need images (channels, height, width), the samples have shape {event_shape}"
            )
        if "hue" in names and event_shape[0] != 3:
            raise InputError(f"augmentation 'hue' needs three channels, the samples have {event_shape[0]}")
        self.parts = [AUGMENTATIONS[name] for name in names]
        self.uniforms = sum(count for count, _, _ in self.parts)

    def __call__(self, x: Tensor, u: Tensor) -> Tensor:
        """Augment images x `(n, c, h, w)` with uniform numbers u `(n, uniforms)`."""
        for count, function, _ in self.parts:
            x, u = function(x, u[:, :count]), u[:, count:]
        return x

    def undo(self, x: Tensor, u: Tensor) -> Tensor:
        """Undo the augmentations, in reverse order."""
        end = self.uniforms
        for count, _, inverse in reversed(self.parts):
            x, end = inverse(x, u[:, end - count : end]), end - count
        return x
