"""A multi-layer perceptron of x and the embedding of log σ, as in the paper.

Each hidden layer is followed by SiLU and by LayerNorm without learned parameters.
"""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from .embedding import NoiseEmbedding


class MLP(nn.Module):
    """h(x `(n, *event)`, log σ `(n,)`, shown) → `(n, *event)`.

    The network of the paper's manifold experiment has event shape (5,), hidden widths (256, 256, 256), an embedding of
    64 numbers, and 150,789 parameters.

    Args:
        event_shape: The shape of a sample.
        hidden: The width of every hidden layer.
        embedding: The noise embedding, or its number of features.
        dropout: The dropout probability.
        shown: The number of inputs that describe the observation; their weights in the first layer start at 0. If they
            are not given they are 0, and the network is a prior.
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
        self.event_shape = tuple(event_shape)
        size = math.prod(self.event_shape)
        self.embedding = NoiseEmbedding(embedding) if isinstance(embedding, int) else embedding
        widths = [size + 2 * len(self.embedding.frequencies), *hidden]
        layers: list[nn.Module] = []
        for width_in, width_out in itertools.pairwise(widths):
            layers += [nn.Linear(width_in, width_out), nn.SiLU(), nn.LayerNorm(width_out, elementwise_affine=False)]
            if dropout > 0:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers, nn.Linear(widths[-1], size))
        first = self.layers[0]
        assert isinstance(first, nn.Linear)
        self.shown = nn.Parameter(torch.zeros(first.out_features, shown)) if shown else None

    def forward(self, x: Tensor, log_sigma: Tensor, shown: Tensor | None = None) -> Tensor:
        features = self.layers[0](torch.cat([x.flatten(1), self.embedding(log_sigma)], -1))
        if self.shown is not None and shown is not None:
            features = features + functional.linear(shown.flatten(1), self.shown)
        for layer in itertools.islice(self.layers, 1, None):
            features = layer(features)
        return features.reshape(x.shape)
