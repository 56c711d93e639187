"""Priors: denoisers that can be sampled and conditioned."""

from .base import Prior
from .diffusion import DiffusionPrior
from .gaussian import GaussianPrior
from .mixture import MixturePrior

__all__ = ["DiffusionPrior", "GaussianPrior", "MixturePrior", "Prior"]
