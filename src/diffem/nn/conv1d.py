r"""Residual convolutions along time, for windows of a series with several channels.

A block turns features f into f + W₂ * SiLU(W₁ * LN(f) + b(σ)), with convolutions W₁ of growing dilation (1, 2, 4, …),
so that the last block sees far, and b a linear function of the noise embedding. Every W₂ starts at 0.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .embedding import NoiseEmbedding

KERNEL = 5


class Block(nn.Module):
    """f `(n, channels, length)`, embedding `(n, e)` → the shape of f."""

    def __init__(self, channels: int, embedding: int, dilation: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, channels)
        padding = dilation * (KERNEL // 2)
        self.first = nn.Conv1d(channels, channels, KERNEL, padding=padding, dilation=dilation)
        self.last = nn.Conv1d(channels, channels, 1)
        self.level = nn.Linear(embedding, channels, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)  # type: ignore[arg-type]

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        inner = functional.silu(self.first(self.norm(features)) + self.level(embedding).unsqueeze(-1))
        return features + self.last(self.dropout(inner))


class Conv1d(nn.Module):
    """h(x `(n, channels, length)`, log σ `(n,)`, shown) → `(n, channels, length)`.

    Args:
        event_shape: Channels and length of a window.
        hidden: Features of each block, the same for all; the dilation doubles from block to block.
        embedding: The noise embedding, or its number of features.
        dropout: The dropout probability.
        shown: The number of inputs that describe the observation, a multiple of the length. They enter the first
            convolution with weights that start at 0. If they are not given they are 0, and the network is a prior.
    """

    def __init__(
        self,
        event_shape: tuple[int, ...],
        hidden: tuple[int, ...] = (64, 64, 64, 64),
        embedding: NoiseEmbedding | int = 64,
        dropout: float = 0.0,
        shown: int = 0,
    ) -> None:
        super().__init__()
        if len(event_shape) != 2:
            raise ValueError(f"convolutions along time take samples (channels, length), got shape {event_shape}")
        if len(set(hidden)) != 1:
            raise ValueError(
                f"all entries of hidden must be equal, because residual blocks have equal widths, got {hidden}"
            )
        self.event_shape = tuple(event_shape)
        channels, self.length = self.event_shape
        if shown % self.length:
            raise ValueError(f"shown must be a multiple of the number of times, {self.length}, got {shown}")
        self.embedding = NoiseEmbedding(embedding) if isinstance(embedding, int) else embedding
        features = 2 * len(self.embedding.frequencies)
        self.first = nn.Conv1d(channels, hidden[0], KERNEL, padding=KERNEL // 2)
        self.shown = nn.Parameter(torch.zeros(hidden[0], shown // self.length, KERNEL)) if shown else None
        self.blocks = nn.ModuleList(Block(c, features, 1 << k, dropout) for k, c in enumerate(hidden))
        self.norm, self.last = nn.GroupNorm(1, hidden[0]), nn.Conv1d(hidden[0], channels, 1)

    def forward(self, x: Tensor, log_sigma: Tensor, shown: Tensor | None = None) -> Tensor:
        embedding = self.embedding(log_sigma)
        features = self.first(x)
        if self.shown is not None and shown is not None:
            maps = shown.reshape(len(x), -1, self.length)
            features = features + functional.conv1d(maps, self.shown, padding=KERNEL // 2)
        for block in self.blocks:
            features = block(features, embedding)
        return self.last(functional.silu(self.norm(features)))
