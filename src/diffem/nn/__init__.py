"""Networks h(x, log sigma). They do not depend on the diffusion model."""

from .embedding import NoiseEmbedding, reference_embedding
from .mlp import MLP
from .unet import UNet

__all__ = ["MLP", "NoiseEmbedding", "UNet", "reference_embedding"]
