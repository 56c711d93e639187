"""Networks h(x, log sigma); nothing here knows about diffusion."""

from .embedding import NoiseEmbedding, reference_embedding
from .mlp import MLP

__all__ = ["MLP", "NoiseEmbedding", "reference_embedding"]
