r"""A residual perceptron for tables: blocks that add to the features, modulated by the noise level.

A block turns features f into f + W₂ SiLU(W₁ LN(f) + b(σ)), with b a linear function of the noise embedding. Every W₂
starts at 0, so the network begins with one hidden layer and becomes deeper as it trains.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .embedding import NoiseEmbedding


class Block(nn.Module):
    """f `(n, width)`, embedding `(n, e)` → f + W₂ SiLU(W₁ LN(f) + b), `(n, width)`."""

    def __init__(self, width: int, embedding: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.first, self.last = nn.Linear(width, width), nn.Linear(width, width)
        self.level = nn.Linear(embedding, width, bias=False)
        self.dropout = nn.Dropout(dropout)
        nn.init.zeros_(self.last.weight)
        nn.init.zeros_(self.last.bias)

    def forward(self, features: Tensor, embedding: Tensor) -> Tensor:
        inner = functional.silu(self.first(self.norm(features)) + self.level(embedding))
        return features + self.last(self.dropout(inner))


class ResidualMLP(nn.Module):
    """h(x `(n, *event)`, log σ `(n,)`, shown) → `(n, *event)`.

    Args:
        event_shape: The shape of a sample.
        hidden: Features of each block, the same for all.
        embedding: The noise embedding, or its number of features.
        dropout: The dropout probability.
        shown: The number of inputs that describe the observation. They enter the first layer with weights that start at
            0. If they are not given they are 0, and the network is a prior.
    """

    def __init__(
        self,
        event_shape: tuple[int, ...],
        hidden: tuple[int, ...] = (256, 256, 256),
        embedding: NoiseEmbedding | int = 64,
        dropout: float = 0.0,
        shown: int = 0,
    ) -> None:
        super().__init__()
        if len(set(hidden)) != 1:
            raise ValueError(
                f"all entries of hidden must be equal, because residual blocks have equal widths, got {hidden}"
            )
        width = hidden[0]
        self.event_shape = tuple(event_shape)
        size = math.prod(self.event_shape)
        self.embedding = NoiseEmbedding(embedding) if isinstance(embedding, int) else embedding
        features = 2 * len(self.embedding.frequencies)
        self.first = nn.Linear(size + features, width)
        self.shown = nn.Parameter(torch.zeros(width, shown)) if shown else None
        self.blocks = nn.ModuleList(Block(width, features, dropout) for _ in hidden)
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, size)

    def forward(self, x: Tensor, log_sigma: Tensor, shown: Tensor | None = None) -> Tensor:
        embedding = self.embedding(log_sigma)
        features = self.first(torch.cat([x.flatten(1), embedding], -1))
        if self.shown is not None and shown is not None:
            features = features + functional.linear(shown.flatten(1), self.shown)
        for block in self.blocks:
            features = block(features, embedding)
        return self.last(functional.silu(self.norm(features))).reshape(x.shape)
