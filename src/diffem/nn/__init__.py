"""Networks h(x, log sigma); nothing here knows about diffusion."""

from .embedding import NoiseEmbedding, reference_embedding
from .mlp import MLP
from .unet import UNet

__all__ = ["MLP", "NoiseEmbedding", "UNet", "reference_embedding"]
