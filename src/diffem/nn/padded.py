"""A U-Net for images of any size, with or without a channel axis: images are padded and cropped again."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from .unet import UNet


def needs_padding(event_shape: tuple[int, ...], factor: int) -> bool:
    """Whether images `(h, w)` or `(c, h, w)` must be padded for a network that downsamples by `factor`."""
    return len(event_shape) == 2 or (len(event_shape) == 3 and any(size % factor for size in event_shape[1:]))


class PaddedUNet(nn.Module):
    """h(x `(n, *event)`, log σ `(n,)`, maps of h×w numbers) → `(n, *event)`, event `(h, w)` or `(c, h, w)`."""

    def __init__(self, event_shape: tuple[int, ...], factor: int, network: UNet) -> None:
        super().__init__()
        self.event_shape, self.network = tuple(event_shape), network
        height, width = self.event_shape[-2:]
        self.padding = (0, -width % factor, 0, -height % factor)

    def forward(self, x: Tensor, log_sigma: Tensor, *maps: Tensor) -> Tensor:
        height, width = self.event_shape[-2:]
        images = (t.reshape(len(t), -1, height, width) for t in (x, *maps))
        image, *others = (functional.pad(t, self.padding, mode="replicate") for t in images)
        return self.network(image, log_sigma, *others)[..., :height, :width].reshape(x.shape)


def padded_shape(event_shape: tuple[int, ...], factor: int) -> tuple[int, int, int]:
    """The shape of the padded images."""
    channels = event_shape[0] if len(event_shape) == 3 else 1
    height, width = (size + -size % factor for size in event_shape[-2:])
    return channels, height, width
