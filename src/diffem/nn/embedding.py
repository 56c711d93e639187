r"""The noise level as a vector of sines and cosines (Vaswani et al. 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..core import vector_math  # noqa: F401  # initialises it


class NoiseEmbedding(nn.Module):
    """log σ `(n,)` → `(n, features)`: sines and cosines at frequencies spread log-linearly between two ends.

    The reference implementation of the paper has frequencies from 1 down to 1e-4, most of which are nearly constant
    over log σ ∈ [−7, 5].
    Here the default range resolves differences of about 0.1 in log σ at one end and covers the whole range once at the
    other.
    """

    frequencies: Tensor

    def __init__(self, features: int = 64, lowest: float = 0.25, highest: float = 16.0) -> None:
        super().__init__()
        if features % 2:
            raise ValueError(f"an embedding has an even number of features, got {features}")
        frequencies = torch.logspace(math.log10(lowest), math.log10(highest), features // 2)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, log_sigma: Tensor) -> Tensor:
        angle = log_sigma.unsqueeze(-1) * self.frequencies.to(log_sigma)
        return torch.cat([angle.sin(), angle.cos()], -1)


def reference_embedding(features: int = 64) -> NoiseEmbedding:
    """The frequencies of the reference implementation, 1 … 1e-4."""
    return NoiseEmbedding(features, lowest=1e-4, highest=1.0)
