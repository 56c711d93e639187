r"""The paper's U-Net: residual blocks modulated by the noise level, attention at chosen levels, one skip per level.

A block turns x into (x + c·y)/√(1 + c²) with y = f(LN((1 + a)·x + b)), where f is two convolutions or an attention and
(a, b, c) come from the noise embedding, one value per channel. At the start c is small, so every block begins close to
the identity, and features keep their size for any c.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..core.counting import count_of
from .embedding import NoiseEmbedding


class ChannelNorm(nn.Module):
    """Layer normalisation over the channels of every pixel, without learned parameters; `(n, c, h, w)` → the same."""

    def forward(self, x: Tensor) -> Tensor:
        exact = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
        return functional.layer_norm(exact.movedim(1, -1), x.shape[1:2]).to(x.dtype).movedim(-1, 1)


class ModulatedBlock(nn.Module):
    """(x + c·f(LN((1 + a)·x + b)))/√(1 + c²); a, b, c `(n, channels)` are an MLP of the embedding `(n, embedding)`."""

    def __init__(self, channels: int, embedding: int, function: nn.Module) -> None:
        super().__init__()
        last = nn.Linear(embedding, 3 * channels)
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.mul_(0.1)
        self.modulation = nn.Sequential(nn.Linear(embedding, embedding), nn.SiLU(), last)
        self.norm = ChannelNorm()
        self.function = function

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        a, b, c = self.modulation(embedding).to(x.dtype)[:, :, None, None].chunk(3, 1)
        y = self.function(self.norm((1 + a) * x + b))
        return (x + c * y) * torch.rsqrt(1 + c * c)


class Convolutions(nn.Sequential):
    """Two 3×3 convolutions with SiLU and dropout between them."""

    def __init__(self, channels: int, dropout: float) -> None:
        super().__init__(conv3(channels, channels), nn.SiLU(), nn.Dropout(dropout), conv3(channels, channels))


class Attention(nn.Module):
    """Self-attention between the pixels of an image, `(n, c, h, w)` → the same."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = nn.Linear(channels, 3 * channels)
        self.out = nn.Linear(channels, channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        c, h, w = x.shape[1:]
        tokens = x.flatten(2).mT  # (n, h·w, c)
        q, k, v = self.query_key_value(tokens).unflatten(-1, (3, self.heads, c // self.heads)).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v)  # (n, heads, h·w, c/heads)
        return self.out(y.transpose(1, 2).flatten(2)).mT.unflatten(2, (h, w))


class Level(nn.Module):
    """Residual blocks at one resolution, each followed by attention if the level has heads."""

    def __init__(self, channels: int, blocks: int, heads: int, embedding: int, dropout: float) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(blocks):
            parts.append(ModulatedBlock(channels, embedding, Convolutions(channels, dropout)))
            if heads:
                parts.append(ModulatedBlock(channels, embedding, Attention(channels, heads)))
        self.parts = nn.ModuleList(parts)

    def forward(self, x: Tensor, embedding: Tensor) -> Tensor:
        for part in self.parts:
            x = part(x, embedding)
        return x


class UNet(nn.Module):
    """h(x `(n, c, h, w)`, log σ `(n,)`, shown `(n, shown, h, w)`) → `(n, c, h, w)`.

    With 3 channels, hidden (128, 256, 384), 5 blocks, heads (0, 4, 0) and a 256-d embedding, the network of the paper's
    CIFAR-10 experiment: 57,560,451 parameters.

    Args:
        event_shape: Channels, height and width of an image.
        hidden: Channels per level, each at half the resolution of the one before.
        blocks: Residual blocks per level and side.
        heads: Attention heads per level, 0 for none.
        embedding: The noise embedding, or its number of features.
        dropout: The dropout probability.
        space_to_depth: Size s of the s×s blocks of pixels that are folded into channels.
        shown: The number of channels that describe the observation. They enter the first convolution with weights that
            start at 0. If they are not given they are 0, and the network is a prior.
    """

    def __init__(
        self,
        event_shape: tuple[int, ...],
        hidden: Sequence[int] = (128, 256, 384),
        blocks: int | Sequence[int] = 5,
        heads: Sequence[int] = (0, 4, 0),
        embedding: NoiseEmbedding | int = 256,
        dropout: float = 0.0,
        space_to_depth: int = 1,
        shown: int = 0,
    ) -> None:
        super().__init__()
        self.event_shape = tuple(event_shape)
        blocks = [blocks] * len(hidden) if isinstance(blocks, int) else list(blocks)
        _check(self.event_shape, hidden, blocks, heads, space_to_depth)
        self.space_to_depth = space_to_depth
        self.embedding = NoiseEmbedding(embedding) if isinstance(embedding, int) else embedding
        features = 2 * len(self.embedding.frequencies)
        channels, last = self.event_shape[0] * space_to_depth**2, len(hidden) - 1

        def level(i: int) -> Level:
            return Level(hidden[i], blocks[i], heads[i], features, dropout)

        self.first = conv3(channels, hidden[0])
        self.shrink = nn.ModuleList(conv3(hidden[i], hidden[i + 1], stride=2) for i in range(last))
        self.descent = nn.ModuleList(level(i) for i in range(last + 1))
        self.ascent = nn.ModuleList(level(i) for i in range(last + 1))
        self.merge = nn.ModuleList(conv3(hidden[i] + hidden[i + 1], hidden[i]) for i in range(last))
        self.norm = ChannelNorm()
        self.last = nn.Conv2d(hidden[0], channels, 1)
        self.shown = nn.Parameter(torch.zeros(hidden[0], shown * space_to_depth**2, 3, 3)) if shown else None

    def forward(self, x: Tensor, log_sigma: Tensor, shown: Tensor | None = None) -> Tensor:
        embedding, weight = self.embedding(log_sigma), self.first.weight
        if self.shown is not None and shown is not None:  # one convolution over both
            x, weight = torch.cat([x, shown], 1), torch.cat([weight, self.shown], 1)
        x = functional.pixel_unshuffle(x, self.space_to_depth).contiguous(memory_format=torch.channels_last)
        x = self.descent[0](functional.conv2d(x, weight, self.first.bias, padding=1), embedding)
        skips = [x]
        for shrink, level in zip(self.shrink, list(self.descent)[1:], strict=True):
            x = level(self.norm(shrink(x)), embedding)
            skips.append(x)
        x = self.ascent[-1](skips.pop(), embedding)
        for merge, level in zip(reversed(self.merge), list(reversed(self.ascent))[1:], strict=True):
            x = functional.interpolate(self.norm(x), scale_factor=2, mode="nearest")
            x = level(merge(torch.cat([skips.pop(), x], 1)), embedding)
        return functional.pixel_shuffle(self.last(x), self.space_to_depth)


def conv3(channels_in: int, channels_out: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(channels_in, channels_out, 3, stride=stride, padding=1)


def _check(
    event_shape: tuple[int, ...], hidden: Sequence[int], blocks: Sequence[int], heads: Sequence[int], fold: int
) -> None:
    if len(event_shape) != 3:
        raise ValueError(
            f"a U-Net needs images (channels, height, width), the samples have shape {event_shape}; vectors "
            "need an MLP, as in the recipe table"
        )
    if not len(hidden) == len(blocks) == len(heads) >= 1:
        raise ValueError(f"hidden, blocks and heads must have one number per level, got {hidden}, {blocks}, {heads}")
    for channels, count in zip(hidden, heads, strict=True):
        if count and channels % count:
            raise ValueError(
                f"the heads must divide the channels, got {count_of(channels, 'channel')} and {count_of(count, 'head')}"
            )
    factor = fold * 2 ** (len(hidden) - 1)
    if any(size % factor for size in event_shape[1:]):
        raise ValueError(
            f"{count_of(len(hidden), 'level')} and space_to_depth {fold} need heights and widths divisible by "
            f"{factor}, got {event_shape[1:]}"
        )
